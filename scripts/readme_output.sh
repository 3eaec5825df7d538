#!/usr/bin/env bash
# Runs the commands whose output the documentation shows, and compares (--check, the default) or
# writes anew what differs (--write). What is compared, and how exactly: scripts/readme_output.py.
#   readme_output.sh [--check | --write] [--images] [PATH_TO_HEDDLE]
set -euo pipefail
cd "$(dirname "$0")/.."
command -v python3 >/dev/null || { echo "readme_output.sh needs python3" >&2; exit 77; }
exec python3 scripts/readme_output.py "$@"
