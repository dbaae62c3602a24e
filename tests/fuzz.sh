#!/usr/bin/env bash
# Runs every fuzzer of tests/fuzz for a while (preset fuzz: Clang 16, sanitizers) and says how much each did.
#
#   tests/fuzz.sh [SECONDS [NAME...]]    20 seconds each; NAME as in safetensors_fuzz
#
# New inputs are kept in build/fuzz/corpus; one that breaks something is left in build/fuzz/findings, its path
# is printed and the exit code is 1. When mended it belongs into tests/fuzz/seeds. Words that a fuzzer may
# put into its inputs are in tests/fuzz/dictionaries.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
seconds=${1:-20}
shift || true
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for file in tests/fuzz/*_fuzz.cpp; do names+=("$(basename "$file" .cpp)"); done
fi
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --target "${names[@]}"
mkdir -p build/fuzz/findings
failed=0
for name in "${names[@]}"; do
  corpus=build/fuzz/corpus/$name
  log=build/fuzz/$name.log
  mkdir -p "$corpus"
  words=()
  if [ -f "tests/fuzz/dictionaries/$name.dict" ]; then words=(-dict="tests/fuzz/dictionaries/$name.dict"); fi
  if "build/fuzz/tests/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 "${words[@]}" -artifact_prefix="build/fuzz/findings/$name-" \
    "$corpus" "tests/fuzz/seeds/$name" >"$log" 2>&1; then
    result=ok
  else
    result='FAILED'
    failed=1
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 | cut -d' ' -f2)
  printf '%-28s %12s runs  %6s edges  %s\n' "$name" "${runs:-?}" "${coverage:-?}" "$result"
  if [ "$result" != ok ]; then tail -n 30 "$log"; fi
done
exit "$failed"
