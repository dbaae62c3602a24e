#!/usr/bin/env bash
# Runs a compiler and fails where ptxas says, as mere information, that it ignored a kernel's division of
# registers (C7508) or made asynchronous products wait for one another (C7510, C7511, C7514, C7515, C7520).
set -uo pipefail
said=$("$@" 2>&1)
result=$?
[ -n "$said" ] && printf '%s\n' "$said" >&2
if [ "$result" -eq 0 ] && grep -qE '\(C75[0-9]{2}\)' <<<"$said"; then
  echo 'wgmma is serialised or setmaxnreg ignored: see C75.. above' >&2
  exit 1
fi
exit "$result"
