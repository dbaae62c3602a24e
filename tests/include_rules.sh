#!/usr/bin/env bash
# Who may include whom. Arrows point down: apps -> engine -> loader, tokenizer -> kernels. Third-party
# headers are fenced as well. Prints each line that breaks a rule and fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
broken=0
sources=(--include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' --include='*.inc')

# forbid WHAT FOLDER... -- PATTERN: no #include that matches PATTERN in these folders' sources.
forbid() {
  local why=$1 folders=() found
  shift
  while [ "$1" != -- ]; do folders+=("$1"); shift; done
  found=$(grep -rnE "${sources[@]}" \
    "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($2)" "${folders[@]}" 2>/dev/null)
  if [ -n "$found" ]; then
    printf '%s:\n%s\n' "$why" "$found"
    broken=1
  fi
}

forbid 'kernels include nothing above them' kernels -- '(apps|engine|loader|tokenizer|tests)/'
forbid 'the loader knows kernels alone' loader -- '(apps|engine|tokenizer|tests)/'
forbid 'the tokenizer knows errors alone' tokenizer -- '(apps|engine|loader|tests|kernels/([^e]|e[^r]))'
forbid 'the engine includes no app' engine -- '(apps|tests)/'
forbid 'apps include no test' apps -- 'tests/'
forbid 'layouts and number formats use the standard library alone' kernels/layout kernels/numeric -- \
  '(kernels/(cpu|cuda|ops|backend|tensor)|fmt/|spdlog/|nlohmann/|cuda)'
forbid 'the CPU backend never sees CUDA' kernels/cpu -- '(kernels/cuda/|cuda)'
forbid 'the CUDA backend never sees the CPU backend' kernels/cuda -- 'kernels/cpu/'
forbid 'only kernels/backend.cpp knows both backends' engine loader tokenizer apps -- 'kernels/(cpu|cuda)/'
forbid 'CUDA headers stay in kernels/cuda' apps engine loader tokenizer kernels/cpu kernels/layout \
  kernels/numeric -- '(cuda|cublas|cusolver|nv)[a-z_0-9]*\.h'
forbid 'spdlog is for apps and the engine' kernels loader tokenizer -- 'spdlog/'
forbid 'CLI11 is for apps' kernels loader tokenizer engine -- 'CLI/'
forbid 'libedit is for the chat' kernels loader tokenizer engine -- 'histedit'
forbid 'JSON is for loader, tokenizer and apps' kernels engine -- 'nlohmann/'
forbid 'PCRE2 and sentencepiece are for the tokenizer' kernels loader engine apps -- '(pcre2|sentencepiece)'

# Only apps write to the standard streams.
if grep -rnE "${sources[@]}" \
  'std::(cout|cerr|clog)|[^n]printf\(|std::(exit|abort|quick_exit)\(' kernels loader tokenizer engine; then
  echo 'printing and exiting are for apps'
  broken=1
fi

# Intervals are those of clocks that nobody sets: a clock that jumps changes no timing and no timeout. Only the
# date that a template writes is the user's own.
if grep -rnE "${sources[@]}" \
  'system_clock|high_resolution_clock|utc_clock|std::time\(|gettimeofday|CLOCK_REALTIME' \
  kernels loader tokenizer engine apps tests |
  grep -vE '^(tokenizer/chat_render|tests/unit/chat_template_test).cpp:'; then
  echo 'a clock that can be set is no measure of time; std::chrono::steady_clock is one'
  broken=1
fi

# Budgets: 600 lines a file, unless a line at its top says why ("longer than").
while IFS= read -r file; do
  lines=$(wc -l <"$file")
  if [ "$lines" -gt 600 ] && ! head -n 12 "$file" | grep -qi 'longer than'; then
    echo "$file has $lines lines (600 at most, or a reason at its top)"
    broken=1
  fi
done < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' '*.inc' '*.sh' '*.py')

# Budgets: 80 lines a function, from its first line to its closing brace, at the margin and, two
# spaces deeper each time, in the bodies of classes. What is inside functions is not looked at.
long=$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' '*.inc' | xargs awk '
  # state: "head" from the first line of a function or class on, "body" inside a function, else "".
  # classes: bodies of classes that are open around it.
  function end_of_head() {
    if (line ~ /[;}]$/) state = ""
    else if (line ~ /\{$/ && is_class) { classes++; state = "" }
    else if (line ~ /\{$/) state = "body"
    else state = "head"
  }
  FNR == 1 { state = ""; classes = 0 }
  {
    match($0, /^ */)
    depth = RLENGTH
    line = substr($0, depth + 1)
    sub(/ *\/\/.*$/, "", line)
  }
  line == "" || line ~ /^#/ { next }
  depth > 2 * classes { if (state == "head") end_of_head(); next }
  depth % 2 { next }  # "public:"
  state == "body" {
    if (depth == 2 * classes && line ~ /^}/) {
      if (FNR - first >= 80) print FILENAME ":" first ": a function of " FNR - first + 1 " lines"
      state = ""
    }
    next
  }
  line ~ /^}/ { if (classes && depth < 2 * classes) classes = depth / 2; state = ""; next }
  state == "head" && line ~ /^[):{]/ { end_of_head(); next }
  line ~ /^(template|namespace|using|typedef|static_assert|extern|enum|friend|INSTANTIATE_)/ { state = ""; next }
  line ~ /^[^(]*=/ && line !~ /operator/ { state = ""; next }
  line ~ /^([A-Za-z_~]|\[\[)/ {
    is_class = line ~ /^(class|struct|union) /
    first = FNR
    end_of_head()
  }')
if [ -n "$long" ]; then
  printf 'functions have 80 lines at most:\n%s\n' "$long"
  broken=1
fi

[ "$broken" -eq 0 ] && echo 'include rules: kept'
exit "$broken"
