#!/usr/bin/env bash
# Runs every fuzzer of tests/fuzz for a while, one on each core (preset fuzz: Clang 16, sanitizers), and says
# how much each did.
#
#   tests/fuzz.sh [SECONDS [NAME...]]    20 seconds each; NAME as in safetensors_fuzz
#
# New inputs are kept in build/fuzz/corpus; one that breaks something is left in build/fuzz/findings, its path
# is printed and the exit code is 1. When mended it belongs into tests/fuzz/seeds. Words that a fuzzer may
# put into its inputs are in tests/fuzz/dictionaries. FUT_FUZZ_SEED=N makes a run draw the same inputs again.
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

# One fuzzer, and a line about what it did.
fuzz() {
  local name=$1 corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log result=ok words=() runs edges
  mkdir -p "$corpus"
  if [ -f "tests/fuzz/dictionaries/$name.dict" ]; then words=(-dict="tests/fuzz/dictionaries/$name.dict"); fi
  "build/fuzz/tests/$name" ${FUT_FUZZ_SEED:+-seed=$FUT_FUZZ_SEED} -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 "${words[@]}" -artifact_prefix="build/fuzz/findings/$name-" \
    "$corpus" "tests/fuzz/seeds/$name" >"$log" 2>&1 || result=FAILED
  runs=$(LC_ALL=C sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  edges=$(grep -ao 'cov: [0-9]*' "$log" | tail -n 1 | cut -d' ' -f2)
  printf '%-28s %12s runs  %6s edges  %s\n' "$name" "${runs:-?}" "${edges:-?}" "$result"
  if [ "$result" = FAILED ]; then tail -n 30 "$log"; return 1; fi
}

failed=0
for name in "${names[@]}"; do
  if [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; then wait -n || failed=1; fi
  fuzz "$name" &
done
while [ -n "$(jobs -p)" ]; do wait -n || failed=1; done
exit "$failed"
