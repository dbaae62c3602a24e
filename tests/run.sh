#!/usr/bin/env bash
# Everything that this machine can test, from a fresh clone: installs the packages, builds and runs the
# tests. Where nvcc 13 and a Hopper card are found, the GPU tests too (and then they must pass).
#
#   tests/run.sh [--full]
#
#   --full  also what takes minutes: the quality of quantisation on the larger of the two trained models
#
# Tests that need models too large to ship look in FUT_TEST_DATA (default: ../shared beside the
# checkout) and are reported as skipped, by name, where it is missing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
leave_out=(-LE full)
case ${1:-} in
  '') ;;
  --full) leave_out=() ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) echo "run.sh: no option '$1'; see --help" >&2; exit 2 ;;
esac
# shellcheck source=apps/packages.sh
. apps/packages.sh
fut_install "${fut_test_packages[@]}"
fut_install "${fut_shell_packages[@]}" || echo "Without ${fut_shell_packages[*]}: its tests are left out" >&2

has_hopper() {
  command -v nvcc >/dev/null 2>&1 && command -v nvidia-smi >/dev/null 2>&1 &&
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -qx '9.0'
}

if has_hopper; then preset=cuda; else preset=cpu; fi
echo "Preset $preset in build/$preset" >&2
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset"
ctest --preset "$preset" -j "$(nproc)" "${leave_out[@]}"
