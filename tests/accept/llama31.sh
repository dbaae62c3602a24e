#!/usr/bin/env bash
# Does quantisation keep its promises on Llama-3.1-8B? Quantises the checkpoint in the ways that are
# published and in ours, measures WikiText-2 and prints one row for each promise, with pass or fail.
#
#   tests/accept/llama31.sh [OPTIONS] MODEL [WIKITEXT2]
#
#   MODEL             folder of Llama-3.1-8B (the base model) as Hugging Face serves it
#   WIKITEXT2         the raw test text [wikitext2/wiki.test.raw in FUT_TEST_DATA, else ../shared]
#   --c4 FILE         text of C4's validation part
#   --calib FILE      calibration text, for the rows that published figures have in-domain
#   --calib-tokens N  of it, in all
#   --work DIR        where quantised folders are written, 13 GB at a time [a temporary folder]
#   --fut PROGRAM     [the newest build/*/bin/fut, else fut in PATH]
#   --device D, --window N, --windows N   as fut perplexity has them
#
# The thresholds are those of Llama-3.1-8B over the whole text in windows of 2048; with --window or
# --windows, or another model, the numbers are true and the verdicts mean nothing.
# Leaves with 0 where no row fails, 1 where one does, 2 for wrong usage, 3 for what is not there.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  sed -n '2,18p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//' >&2
  exit 2
}
complain() {
  echo "llama31.sh: $1" >&2
  exit "${2:-2}"
}
require_number() {
  case $2 in '' | 0* | *[!0-9]*) complain "$1 '$2': give a whole number above 0" ;; esac
}

fut='' c4='' work='' quantize_flags=() measure_flags=() positional=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage ;;
    --c4 | --calib | --calib-tokens | --work | --fut | --device | --window | --windows)
      [ $# -ge 2 ] || complain "$1 needs a value"
      case $1 in
        --c4) c4=$2 ;;
        --work) work=$2 ;;
        --fut) fut=$2 ;;
        --calib | --calib-tokens) quantize_flags+=("$1" "$2") ;;
        *) measure_flags+=("$1" "$2") ;;
      esac
      case $1 in
        --window | --windows | --calib-tokens) require_number "$1" "$2" ;;
        --calib) [ -f "$2" ] || complain "$2: not there" 3 ;;
      esac
      shift 2
      ;;
    -*) complain "unknown option $1; --help lists what there is" ;;
    *)
      positional+=("$1")
      shift
      ;;
  esac
done
case ${#positional[@]} in 1 | 2) ;; *) usage ;; esac
model=${positional[0]}
wikitext=${positional[1]:-${FUT_TEST_DATA:-$root/../shared}/wikitext2/wiki.test.raw}
[ -f "$model/config.json" ] || complain "$model: no config.json in it; give the checkpoint's folder" 3
[ -f "$wikitext" ] || complain "$wikitext: not there; give the raw test text of WikiText-2" 3
[ -z "$c4" ] || [ -f "$c4" ] || complain "$c4: not there" 3
if [ -z "$fut" ]; then
  # shellcheck disable=SC2012  # names of build folders are ours
  fut=$(ls -t "$root"/build/*/bin/fut 2>/dev/null | head -n 1)
  [ -n "$fut" ] || fut=$(command -v fut) || complain 'no fut program; build it or give --fut' 3
fi
case $fut in */*) ;; *) fut=$(command -v "$fut") || complain "--fut: no such program in PATH" 3 ;; esac
{ [ -f "$fut" ] && [ -x "$fut" ]; } || complain "$fut: no program that can be run; build it or give --fut" 3
if [ -z "$work" ]; then
  work=$(mktemp -d) || complain 'no temporary folder can be made; give --work DIR' 3
  trap 'rm -rf "$work"' EXIT
fi
{ mkdir -p "$work" && [ -w "$work" ]; } 2>/dev/null ||
  complain "$work: cannot be made or written; give another --work DIR" 3

# ---- measuring -----------------------------------------------------------------------------------

# ppl FOLDER TEXT FLAG...: prints the perplexity, nothing where it cannot be had.
ppl() {
  local folder=$1 text=$2
  shift 2
  echo "  fut perplexity -m $folder $*" >&2
  "$fut" perplexity -m "$folder" -f "$text" "$@" ${measure_flags[@]+"${measure_flags[@]}"} -o json |
    sed -n 's/.*"ppl":\([0-9.e+-]*\).*/\1/p'
}
on_wikitext() {
  local folder=$1
  shift
  ppl "$folder" "$wikitext" --wikitext "$@"
}
# decode FOLDER FLAG...: every token through the INT4 weights; the cache in BF16 unless flags say so.
decode() {
  local folder=$1
  shift
  on_wikitext "$folder" --path decode "$@"
}

# quantized NAME FLAG...: makes $work/NAME and prints its path.
quantized() {
  local name=$1
  shift
  echo "  fut quantize -m $model $*" >&2
  "$fut" quantize -m "$model" -o "$work/$name" --overwrite "$@" >"$work/$name.report" &&
    echo "$work/$name"
}

# ---- the table -----------------------------------------------------------------------------------

failed=0
# row TEXT VALUE LEAST MOST: a value that is not there fails.
row() {
  local verdict
  verdict=$(awk -v value="$2" -v least="$3" -v most="$4" 'BEGIN {
    print value == "" ? "fail (did not run)" : (value >= least && value <= most) ? "pass" : "fail" }')
  [ "$verdict" = pass ] || failed=1
  printf '%-46s %10s   %-18s %s\n' "$1" "$(shown "$2")" "$(range "$3" "$4")" "$verdict"
}
not_measured() { printf '%-46s %10s   %-18s %s\n' "$1" '-' "$2" "n/a ($3)"; }
shown() { [ -n "$1" ] && printf '%.4f' "$1" || printf '%s' -; }
range() { if [ "$1" = 0 ] || [ "$1" = -1 ]; then echo "at most $2"; else echo "$1 to $2"; fi; }
difference() { [ -n "$1" ] && [ -n "$2" ] && awk -v a="$1" -v b="$2" 'BEGIN { print a - b }'; }

printf '%s on %s\n' "$model" "$wikitext"
[ ${#measure_flags[@]} -eq 0 ] || printf 'with %s\n' "${measure_flags[*]}"
printf '%-46s %10s   %-18s %s\n' '' measured wanted verdict

bf16=$(on_wikitext "$model" --precision bf16)
row 'BF16' "$bf16" 6.235 6.245
if [ -n "$c4" ]; then
  row 'BF16, C4' "$(ppl "$model" "$c4" --precision bf16)" 8.953 8.963
else
  not_measured 'BF16, C4' '8.953 to 8.963' 'give --c4 FILE'
fi

plain=(--no-balance-qk --no-balance-ffn --no-kv-rotation)
flags=(${quantize_flags[@]+"${quantize_flags[@]}"})
cache=(--kv-cache-dtype bf16)
folder=$(quantized rtn-minmax --method rtn --scales minmax "${plain[@]}")
row 'round to nearest, as published' "$(decode "$folder" "${cache[@]}" --head bf16)" 6.91 7.01
rm -rf "$folder"
folder=$(quantized rtn --method rtn)
row 'round to nearest, scales searched' "$(decode "$folder" "${cache[@]}")" 0 6.88
fp8=$(on_wikitext "$folder" --precision fp8)
row 'FP8 prefill adds' "$(difference "$fp8" "$bf16")" -1 0.05
rm -rf "$folder"
folder=$(quantized gptq-plain --method gptq --no-rotate "${plain[@]}" ${flags[@]+"${flags[@]}"})
row 'GPTQ, as published' "$(decode "$folder" "${cache[@]}")" 0 6.65
rm -rf "$folder"
folder=$(quantized gptq --method gptq ${flags[@]+"${flags[@]}"})
gptq=$(decode "$folder" "${cache[@]}")
row 'GPTQ, rotated and evened out' "$gptq" 0 6.55
row 'its rotated INT4 cache adds' \
  "$(difference "$(decode "$folder" --kv-cache-dtype int4)" "$gptq")" -1 0.12
rm -rf "$folder"
exit "$failed"
