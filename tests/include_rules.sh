#!/usr/bin/env bash
# Who may include whom. Arrows point down: apps -> engine -> loader, tokenizer -> kernels. Third-party
# headers are fenced as well. Prints each line that breaks a rule and fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
broken=0

# forbid WHAT FOLDER... -- PATTERN: no #include that matches PATTERN in these folders' sources.
forbid() {
  local why=$1 folders=() found
  shift
  while [ "$1" != -- ]; do folders+=("$1"); shift; done
  found=$(grep -rnE --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' \
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
forbid 'JSON is for loader, tokenizer and apps' kernels engine -- 'nlohmann/'
forbid 'PCRE2 and sentencepiece are for the tokenizer' kernels loader engine apps -- '(pcre2|sentencepiece)'

# Only apps write to the standard streams.
if grep -rnE --include='*.h' --include='*.cpp' --include='*.cu' \
  'std::(cout|cerr|clog)|[^n]printf\(|std::(exit|abort|quick_exit)\(' kernels loader tokenizer engine; then
  echo 'printing and exiting are for apps'
  broken=1
fi

# Budgets: 600 lines a file, unless a line at its top says why ("longer than").
while IFS= read -r file; do
  lines=$(wc -l <"$file")
  if [ "$lines" -gt 600 ] && ! head -n 12 "$file" | grep -qi 'longer than'; then
    echo "$file has $lines lines (600 at most, or a reason at its top)"
    broken=1
  fi
done < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' '*.sh' '*.py')

# Budgets: 80 lines a function, from its first line at the margin to its closing brace there.
long=$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs awk '
  /^[A-Za-z].*[({]$/ && !/^(namespace|struct|class|enum|union|extern|using|typedef|static_assert)/ && !inside { first = FNR; inside = 1 }
  /^}/ { if (inside && FNR - first >= 80) print FILENAME ":" first ": a function of " FNR - first + 1 " lines"; inside = 0 }
  /^[^ ].*;$/ { inside = 0 }')
if [ -n "$long" ]; then
  printf 'functions have 80 lines at most:\n%s\n' "$long"
  broken=1
fi

[ "$broken" -eq 0 ] && echo 'include rules: kept'
exit "$broken"
