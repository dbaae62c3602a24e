#!/usr/bin/env bash
# Everything that a Hopper card can test and measure, from binaries that are there already: every test
# with a GPU half, samples of them under compute-sanitizer, then the benchmarks. Builds nothing.
#
#   tests/gpu.sh [--log FILE] [--only PATTERN] [--no-tests] [--no-sanitizer] [--no-bench] [--sanitize] [--cliffs] [--peers [LIST]] [FOLDER]
#
#   FOLDER          a build with CUDA, default build/cuda: its tests/ is looked through. Shared libraries
#                   in FOLDER/lib, if there is one, come before the system's
#   --log FILE      the full output, default gpu.log
#   --only PATTERN  of test programs and benchmarks those whose names match, as in 'attention|gptq'
#   --no-tests      leave out the tests
#   --no-sanitizer  leave out compute-sanitizer (which is slow)
#   --no-bench      leave out the benchmarks
#   --sanitize      every test with a GPU half under memcheck, racecheck, initcheck and synccheck in place of the
#                   samples: hours
#   --cliffs        INT4 products of 1 to 33 rows: where a row more costs over 8 %
#   --peers [LIST]  PyTorch and fut in turn (bench/alternate.py --help), by default at all points of decode, else at
#                   those of the list: 8b:1,70b:32,step:8,prefill-8b:1x2048,prefill-70b. Takes some 8 minutes where
#                   PyTorch has compiled nothing yet ($TORCHINDUCTOR_CACHE_DIR keeps what it compiles);
#                   $PEERS_SECONDS is after how many no further point begins; $PYTHON is the interpreter
#
# Prints a line for each run while they go on and a table last, under it what failed and what was skipped
# and why. A test that needs a GPU fails without one. Exits with 0 where all that ran passed, with 1 where
# something failed or nothing ran, with 2 where it was called wrongly.
set -uo pipefail

# A program of FOLDER/tests, and tests of it that are short enough for tools that slow it down a lot.
sanitizer_samples=(
  'attention_prefill_cuda_test:*StoresTheBytesOfTheContractAtTheEdge*:*AloneAndInCompanyOverCodes'
  'int4_linear_cuda_test:*TakesMoreTokensThanOneLaunch*'
  'embed_test:EmbedCuda.*'
  'expand_test:ExpandCuda.*'
  'attention_cuda_test:*GroupsWithoutARange*'
  'int4_fused_cuda_test:*SaturatesWhatIsInfinite*'
  'row_qkv_cuda_test:*ForASequenceAlone*'
  'advance_test:AdvanceCuda.*'
)
sample_tools=(memcheck racecheck)
sanitizer_tools=(memcheck racecheck initcheck synccheck)
# Tests that must be among them, as a pattern of their names: what takes longest is easily left out.
promised_tests=('ALongReplyIsTheSameTwiceAndAmongOthers')
test_seconds=900 sample_seconds=300 sanitize_seconds=7200 bench_seconds=300 peers_seconds=1500  # the most that one run may take

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
configs=$(dirname "$here")/configs
folder='' log=gpu.log only='' tests=1 sanitizer=1 sanitize=0 bench=1 cliffs=0 peers=0 points=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --log)
      if [ $# -lt 2 ]; then echo 'gpu.sh: --log needs a file' >&2; exit 2; fi
      log=$2; shift ;;
    --only)
      if [ $# -lt 2 ]; then echo 'gpu.sh: --only needs a pattern' >&2; exit 2; fi
      only=$2; shift ;;
    --no-tests) tests=0 ;;
    --no-sanitizer) sanitizer=0 ;;
    --no-bench) bench=0 ;;
    --sanitize) sanitize=1 ;;
    --cliffs) cliffs=1 ;;
    --peers)
      peers=1
      if [[ ${2:-} =~ ^([0-9a-z]+:[0-9]|prefill-) ]]; then points=${2//,/ }; shift; fi ;;
    -*) echo "gpu.sh: no option '$1'; see --help" >&2; exit 2 ;;
    *)
      if [ -n "$folder" ]; then echo "gpu.sh: two folders, '$folder' and '$1'" >&2; exit 2; fi
      folder=$1 ;;
  esac
  shift
done
folder=${folder:-$(dirname "$here")/build/cuda}
if [ ! -d "$folder/tests" ]; then
  echo "gpu.sh: no tests in $folder; build them first: cmake --preset cuda && cmake --build --preset cuda" >&2
  exit 2
fi
: >"$log" || exit 2
system_libraries=${LD_LIBRARY_PATH-}
[ ! -d "$folder/lib" ] || export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export FUT_REQUIRE_GPU=1

table=() failed=() skipped=() failures=0 runs=0
own=$(mktemp) || exit 2
trap 'rm -f "$own"' EXIT

# row WHAT RESULT SECONDS NOTE: a line of the table, printed now as well.
row() {
  table+=("$(printf '%-46s %-7s %6s  %s' "$@")")
  echo "${table[-1]}" >&2
}

# run NAME SECONDS COMMAND...: into the log; output stays in $own, how it ended in $status, time in $took.
run() {
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  printf '\n==== %s: %s\n' "$name" "$*" >>"$log"
  timeout --kill-after=10 "$limit" "$@" >"$own" 2>&1
  status=$?
  took=$((SECONDS - start))
  cat "$own" >>"$log"
  runs=$((runs + 1))
}

# judge NAME NOTE: a row for what run() ran.
judge() {
  if [ "$status" -eq 0 ]; then row "$1" ok "${took}s" "$2"; return; fi
  failures=$((failures + 1))
  local why="exit $status"
  if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then why='out of time'; fi
  row "$1" FAILED "${took}s" "$why${2:+, $2}"
}

# What ended well and tested nothing did not end well: a filter may name no test any more.
require_tests() {
  if [ "$status" -eq 0 ] && ! grep -q '^\[  PASSED  \] [1-9]' "$own"; then status=1; fi
}

# Programs whose tests ask for a GPU say so in a message that only those hold.
gpu_tests() {
  grep -lsE 'a GPU is required but missing|\(FUT_REQUIRE_GPU=1\)' "$folder"/tests/*_test | grep -E "/[^/]*($only)[^/]*$" | sort
}

run_tests() {
  local program name reason pattern
  while IFS= read -r program; do
    name=$(basename "$program")
    run "$name" "$test_seconds" "$program" --gtest_color=no
    require_tests
    judge "$name" "$(grep -c '^\[       OK \]' "$own") tests passed"
    # The line before a test's last one is why.
    while IFS= read -r reason; do skipped+=("$name: $reason"); done < <(
      awk '/^\[  SKIPPED \] .*\(/ { print $4 ": " said } !/^\[/ && NF { said = $0 }' "$own")
    while IFS= read -r reason; do failed+=("$name: $reason"); done < <(
      sed -n 's/^\[  FAILED  \] \([^ ]*\) (.*/\1/p' "$own")
  done < <(gpu_tests)
  if [ "$runs" -eq 0 ]; then
    skipped+=("all tests: none in $folder has a GPU half${only:+ and matches $only}; built without CUDA?")
    return
  fi
  if [ -n "$only" ]; then return; fi
  for pattern in "${promised_tests[@]}"; do
    if grep -qE "^\[ RUN .*$pattern" "$log"; then continue; fi
    skipped+=("tests named $pattern: none in $folder/tests")
  done
}

# sanitize TOOL PROGRAM SECONDS FILTER: a program's tests, those of the filter, under a tool.
sanitize() {
  local name
  name=$(basename "$2")
  run "$1 of $name" "$3" compute-sanitizer --tool "$1" --error-exitcode 9 "$2" "--gtest_filter=$4" --gtest_color=no
  require_tests
  judge "$1 of $name" "$(sed -n 's/^=* \(ERROR SUMMARY\|RACECHECK SUMMARY\): //p' "$own" | tail -1)"
}

run_sanitizer() {
  local sample program tool
  if ! command -v compute-sanitizer >/dev/null 2>&1; then
    skipped+=('compute-sanitizer: not found in PATH (it comes with the CUDA Toolkit)')
    return
  fi
  if [ "$sanitize" -eq 1 ]; then
    while IFS= read -r program; do
      for tool in "${sanitizer_tools[@]}"; do sanitize "$tool" "$program" "$sanitize_seconds" '*'; done
    done < <(gpu_tests)
    return
  fi
  for sample in "${sanitizer_samples[@]}"; do
    program=$folder/tests/${sample%%:*}
    if [ ! -x "$program" ]; then skipped+=("compute-sanitizer of ${sample%%:*}: not built"); continue; fi
    for tool in "${sample_tools[@]}"; do sanitize "$tool" "$program" "$sample_seconds" "${sample#*:}"; done
  done
}

run_bench() {
  local program name
  for program in "$folder"/tests/*_cuda_bench; do
    if [ ! -x "$program" ]; then skipped+=('benchmarks: none built'); return; fi
    name=$(basename "$program")
    if ! grep -qE "$only" <<<"$name"; then continue; fi
    run "$name" "$bench_seconds" "$program" --benchmark_color=false
    if grep -q 'ERROR OCCURRED' "$own"; then status=1; fi
    judge "$name" 'numbers above'
    numbers+=$(printf '\n%s\n' "$name"; grep -E '^[a-z_]+/|ERROR| us( |,)' "$own" | cut -c1-150)$'\n'
  done
  if [ -n "$only" ]; then return; fi
  if [ ! -x "$folder/bin/fut" ]; then skipped+=('decode steps, prompts: no fut built'); return; fi
  run_steps
  run_prompts
}

# Whole decode steps of random weights in the shapes of Llama-3.1.
run_steps() {
  local size batch
  for size in 8b 70b; do
    for batch in 1 8 32; do
      run "llama-3.1-$size, batch $batch" "$bench_seconds" "$folder/bin/fut" bench --device cuda \
        --dummy "$configs/llama-3.1-$size.json" -b "$batch" -d 2048 --temp 0 -v
      judge "llama-3.1-$size, batch $batch" "$(grep '^step' "$own")"
    done
  done
}

# Prompts of random weights in the shapes of Llama-3.1, to their first tokens and by the layer.
run_prompts() {
  local size
  for size in 8b 70b; do
    run "llama-3.1-$size, prompts" "$bench_seconds" "$folder/bin/fut" bench --device cuda \
      --dummy "$configs/llama-3.1-$size.json" --prompts all --temp 0
    judge "llama-3.1-$size, prompts" 'numbers above'
    numbers+=$(printf '\nllama-3.1-%s\n' "$size"; cat "$own")$'\n'
  done
}

run_cliffs() {
  local program=$folder/tests/int4_ops_cuda_bench
  if [ ! -x "$program" ]; then skipped+=('cliffs: int4_ops_cuda_bench not built'); return; fi
  run 'INT4 products, 1 to 33 rows' "$bench_seconds" "$program" --cliffs
  judge 'INT4 products, 1 to 33 rows' "$(grep -E '^[0-9]+ steps over' "$own")"
  numbers+=$(printf '\nrows\n'; grep '^step: ' "$own")$'\n'
}

# A row for each point that alternate.py says something about, also where it was stopped later.
run_peers() {
  local python=${PYTHON:-python3} why line
  if [ ! -x "$folder/bin/fut" ]; then skipped+=('peers: no fut built'); return; fi
  if ! why=$(LD_LIBRARY_PATH=$system_libraries "$python" -c 'import torch; assert torch.cuda.is_available(), "PyTorch sees no GPU"' 2>&1); then
    skipped+=("peers: $(tail -1 <<<"$why")")
    return
  fi
  # PyTorch is not to get FOLDER/lib; fut finds it by itself.
  # shellcheck disable=SC2086
  run 'peers' "$peers_seconds" env LD_LIBRARY_PATH="$system_libraries" "$python" "$here/bench/alternate.py" \
    --fut "$folder/bin/fut" --out "$log.peers.jsonl" ${PEERS_SECONDS:+--seconds "$PEERS_SECONDS"} $points
  judge 'peers' "in turn; all of it in $log.peers.jsonl"
  while IFS= read -r line; do
    case $line in
      *FAILED*) row "peers ${line%% *}" FAILED '' "${line#*FAILED: }" ;;
      *) row "peers ${line%% *}" ok '' "ours ${line#* ours }" ;;
    esac
  done < <(grep -E '^(8b|70b|step|prefill-8b|prefill-70b):[0-9a-z]+ ' "$own" | awk '!seen[$1]++')
}

numbers=''
{ date -u '+%F %T UTC'
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader; } 2>&1 | tee -a "$log" >&2
if [ "$tests" -eq 1 ]; then run_tests; else skipped+=('tests: --no-tests'); fi
if [ "$sanitizer" -eq 1 ]; then run_sanitizer; else skipped+=('compute-sanitizer: --no-sanitizer'); fi
if [ "$bench" -eq 1 ]; then run_bench; else skipped+=('benchmarks: --no-bench'); fi
if [ "$cliffs" -eq 1 ]; then run_cliffs; fi
if [ "$peers" -eq 1 ]; then run_peers; fi

{
  printf '%s\n' "$numbers"
  printf '%-46s %-7s %6s  %s\n' what result time note
  printf '%s\n' "${table[@]+"${table[@]}"}"
  if [ "${#failed[@]}" -gt 0 ]; then printf 'failed   %s\n' "${failed[@]}"; fi
  if [ "${#skipped[@]}" -gt 0 ]; then printf 'skipped  %s\n' "${skipped[@]}"; fi
  echo "$runs runs, $failures failed, ${#skipped[@]} skipped; full log: $log"
} | tee -a "$log"
[ "$failures" -eq 0 ] && [ "$runs" -gt 0 ]
