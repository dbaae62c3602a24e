#!/usr/bin/env bash
# From a fresh Debian 12 or Ubuntu 24.04 to text in one command: installs the packages, builds `fut`
# and lets the demonstration model go on from a prompt. Only the text goes to standard output.
#
#   apps/quickstart.sh [PROMPT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prompt=${1:-Once upon a time}
build=$root/build/quickstart
log=$build/build.log

# shellcheck source=apps/packages.sh
. "$root/apps/packages.sh"
fut_install "${fut_build_packages[@]}"

# The kernels for the GPU where both a card that runs them and a compiler that makes them are here.
cuda=OFF
what='for the CPU'
if command -v nvidia-smi >/dev/null 2>&1 &&
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -qx '9.0'; then
  if nvcc --version 2>/dev/null | grep -qE 'release (1[3-9]|[2-9][0-9])\.'; then
    cuda=ON
    what='for the CPU and the Hopper GPU'
  else
    what='for the CPU alone: there is a Hopper GPU, but no nvcc of CUDA Toolkit 13 in PATH'
  fi
fi

mkdir -p "$build"
echo "Building $what in $build (log: $log)" >&2
if ! { cmake -S "$root" -B "$build" -G Ninja -DFUT_CUDA=$cuda -DFUT_TESTS=OFF &&
  cmake --build "$build"; } >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  echo "The build failed; the whole log is $log" >&2
  exit 1
fi

echo "$build/bin/fut run --raw -n 128 --seed 1 -p '$prompt'" >&2
exec "$build/bin/fut" run --raw -n 128 --seed 1 --no-escape --prompt="$prompt"
