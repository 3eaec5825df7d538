#!/usr/bin/env bash
# Are all sources formatted as .clang-format says? Exit 77 (CTest: skipped) where clang-format 14 is missing:
# other versions format differently.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in clang-format-14 clang-format; do
  if command -v "$tool" >/dev/null && "$tool" --version | grep -q 'version 14\.'; then
    find src tests benchmarks \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) -not -path '*/.venv/*' -print0 |
      xargs -0 "$tool" --dry-run --Werror
    exit 0
  fi
done
echo "clang-format 14 is not installed (scripts/setup.sh --lint); skipped"
exit 77
