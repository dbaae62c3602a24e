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

mkdir -p "$build"
echo "Building in $build (log: $log)" >&2
if ! { cmake -S "$root" -B "$build" -G Ninja -DFUT_CUDA=OFF -DFUT_TESTS=OFF &&
  cmake --build "$build"; } >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  echo "The build failed; the whole log is $log" >&2
  exit 1
fi

echo "$build/bin/fut run --raw -n 128 --seed 1 -p '$prompt'" >&2
exec "$build/bin/fut" run --raw -n 128 --seed 1 --no-escape --prompt="$prompt"
