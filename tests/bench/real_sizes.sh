#!/usr/bin/env bash
# What a user of a large model meets, measured on one of random weights: the start from a quantised folder,
# many prompts at a time against fut bench, memory over ten thousand requests, GPTQ. Builds nothing.
#
#   tests/bench/real_sizes.sh [--build DIR] [--work DIR] [--shape FILE] [--device D] start|batch|memory|gptq...
#
#   start    to the first token of a quantised folder: five times with a warm page cache, twice with a cold one
#   batch    32 prompts of mixed lengths, 256 tokens each: the speed of decode beside fut bench at the same
#            batch and depth; once more with replies of mixed lengths
#   memory   10,000 small requests: the process's and the GPU's memory, four times a second
#   gptq     a checkpoint of four shards quantised with 128 x 2048 tokens: time, peak memory, the worst losses;
#            --layers N makes it of so many layers, for shapes that a disk cannot hold
#
#   --build DIR    programs, default build/cuda: DIR/bin/fut and DIR/tests/make_model
#   --work DIR     where models are made, 14 GB for the 8B shape, of gptq 16 GB and as many again for what it
#                  writes and saves; default: a temporary folder that is removed
#   --shape FILE   default configs/llama-3.1-8b.json
#   --device D     default cuda
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$here/build/cuda work='' shape=$here/configs/llama-3.1-8b.json device=cuda parts=()
rows=32 depth=1000 reply=256 layers=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --build) build=$2; shift ;;
    --work) work=$2; shift ;;
    --shape) shape=$2; shift ;;
    --device) device=$2; shift ;;
    --layers) layers=$2; shift ;;
    start | batch | memory | gptq) parts+=("$1") ;;
    *) echo "real_sizes.sh: '$1'? see --help" >&2; exit 2 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || { echo 'real_sizes.sh: start, batch, memory or gptq? see --help' >&2; exit 2; }
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work"
fut=$build/bin/fut
packed=$work/packed-$(basename "$shape" .json)

make_packed() {
  [ -f "$packed/model.safetensors" ] && return
  echo "making $packed"
  "$build/tests/make_model" packed "$shape" "$packed"
}

# The number of a key in JSON on standard input.
number() { sed -n "s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p" | head -n 1; }

start_once() {
  local begin end
  begin=$(date +%s.%N)
  "$fut" run --device "$device" -m "$packed" --raw -p 'once upon a time' -n 8 --ignore-eos -c 8192 \
    -v -o json >"$work/out.json" 2>"$work/log.txt"
  end=$(date +%s.%N)
  echo "$1: first token $(tr -d '\n' <"$work/out.json" | number total) s," \
    "whole program $(awk "BEGIN { printf \"%.2f\", $end - $begin }") s"
}

start() {
  make_packed
  "$build/tests/make_model" warm "$packed/model.safetensors"
  for _ in 1 2 3 4 5; do start_once warm; done
  sed -n '/from the start/,$p' "$work/log.txt"
  for _ in 1 2; do
    "$build/tests/make_model" cold "$packed/model.safetensors"
    start_once cold
  done
  sed -n '/from the start/,$p' "$work/log.txt"
}

# ROWS REPLY MIXED: prompts of depth / 2 to 3 * depth / 2 letters and blanks, some of one token and most of more.
prompts() {
  awk -v rows="$1" -v reply="$2" -v mixed="$3" -v depth="$depth" 'BEGIN {
    srand(7)
    for (row = 0; row < rows; row++) {
      text = ""
      for (n = depth / 2 + depth * row / rows; n > 0; n--) {
        text = text (rand() < 0.2 ? " " : sprintf("%c", 97 + int(26 * rand())))
      }
      tokens = mixed ? int(reply / 2 + reply * row / rows) : reply
      printf "{\"prompt\": \"x%s\", \"raw\": true, \"max_tokens\": %d, \"ignore_eos\": true, \"seed\": %d}\n", text, tokens, row
    }
  }'
}

batch() {
  make_packed
  local bench decode mixed
  for mixed in 0 1; do
    prompts "$rows" "$reply" "$mixed" >"$work/prompts.jsonl"
    "$fut" run --device "$device" -m "$packed" -c 4096 -i "$work/prompts.jsonl" -b "$rows" --overwrite \
      --output-file "$work/replies.jsonl" -v 2>"$work/log.txt"
    tail -n 2 "$work/log.txt"
    if [ "$mixed" = 0 ]; then
      # The depth in the middle of the replies.
      local prompt_tokens
      prompt_tokens=$(sed -n 's/.*"prompt_tokens": *\([0-9]*\).*/\1/p' "$work/replies.jsonl" |
        awk '{ sum += $1 } END { printf "%d", sum / NR }')
      decode=$(sed -n 's/^\[prompts.*a step, \([0-9.]*\) tokens.*/\1/p' "$work/log.txt")
      bench=$("$fut" bench --device "$device" -m "$packed" -b "$rows" \
        -d $((prompt_tokens + reply / 2)) -o json | tr -d '\n' | number tokens_per_second)
      echo "decode of $rows rows $decode tokens/s, fut bench at depth" \
        "$((prompt_tokens + reply / 2)) $bench tokens/s:" \
        "$(awk "BEGIN { printf \"%.1f\", 100 * $decode / $bench }") %"
    fi
  done
}

memory() {
  make_packed
  depth=20 prompts 10000 8 1 >"$work/many.jsonl"
  "$fut" run --device "$device" -m "$packed" -i "$work/many.jsonl" -b 16 --overwrite --output-file \
    "$work/many_replies.jsonl" &
  local process=$!
  while sleep 0.25 && kill -0 "$process" 2>/dev/null; do
    echo "$(wc -l <"$work/many_replies.jsonl" 2>/dev/null || echo 0) rows," \
      "resident $(awk '/VmRSS/ { print $2 }' "/proc/$process/status" 2>/dev/null) KB," \
      "GPU $(nvidia-smi --query-gpu=memory.used --format=csv,noheader 2>/dev/null | head -n 1)"
  done
  wait "$process"
  echo "$(wc -l <"$work/many_replies.jsonl") rows"
}

# Words of one to nine letters, enough for 128 x 2048 tokens of any vocabulary.
calibration_text() {
  awk 'BEGIN {
    srand(11)
    for (n = 0; n < 3000000; n++) printf "%s", rand() < 0.2 ? " " : sprintf("%c", 97 + int(26 * rand()))
  }'
}

gptq() {
  local source=$work/checkpoint-$(basename "$shape" .json)${layers:+-$layers}
  if [ ! -d "$source" ]; then
    echo "making $source"
    "$build/tests/make_model" checkpoint "$shape" "$source" 4 ${layers:+"$layers"}
  fi
  calibration_text >"$work/calibration.txt"
  "$fut" quantize --device "$device" -m "$source" -o "$source-gptq" --method gptq \
    --calib "$work/calibration.txt" --overwrite
}

for part in "${parts[@]}"; do "$part"; done
