#!/usr/bin/env bash
# Does this tree compute the same bits as another commit, on every mesh of the parity grid?
#   mesh_bits.sh COMMIT [BUILD]
# Builds COMMIT in a folder beside BUILD (default: build), runs mesh_bits of both, and compares losses, norms, gradients
# and trained weights line by line. For changes that must not change a number; takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:?usage: mesh_bits.sh COMMIT [BUILD]}
build=${2:-build}

other=$(mktemp -d)
trap 'git worktree remove --force "$other/source" >/dev/null 2>&1 || true; rm -rf "$other"' EXIT
git worktree add --quiet --detach "$other/source" "$commit"

# bits SOURCE BUILD: the lines of the program that SOURCE builds.
bits() {
  cmake -S "$1" -B "$2" -G Ninja --log-level=WARNING -DHEDDLE_CUDA=OFF >&2
  cmake --build "$2" --target mesh_bits -j "$(nproc)" >&2
  "$2/tests/parity/mesh_bits"
}
bits "$other/source" "$other/build" >"$other/then"
bits . "$build" >"$other/now"
if diff "$other/then" "$other/now" >"$other/differences"; then
  echo "the same bits on all $(wc -l <"$other/now") models and meshes"
else
  cat "$other/differences"
  echo "$(grep -c '^>' "$other/differences") of $(wc -l <"$other/now") lines differ from $commit" >&2
  exit 1
fi
