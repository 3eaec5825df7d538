#!/usr/bin/env bash
# Plays both machines on this one: the second in the background, silent unless it fails.
set -euo pipefail
here=$(dirname "$0")
log=$(mktemp)
"$here/start.sh" 1 127.0.0.1 --fresh > "$log" 2>&1 &
other=$!
"$here/start.sh" 0 127.0.0.1 --fresh || status=$?
wait $other || { cat "$log" >&2; status=1; }
rm "$log"
exit ${status:-0}
