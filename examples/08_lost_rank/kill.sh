#!/usr/bin/env bash
# Trains on four ranks, and kills one of them without warning when the run has made STEP steps (default: 40).
set -euo pipefail
here=$(dirname "$0")
folder=runs/lost-rank
last_step() { grep -o '"step":[0-9]*' "$folder/metrics.jsonl" 2>/dev/null | tail -n 1 | cut -d: -f2; }

rm -rf "$folder"
heddle launch --ranks 4 --restart -- train "$here/run.toml" "$@" &
launcher=$!
until [ "$(last_step || echo 0)" -ge "${STEP:-40}" ] 2>/dev/null; do
  kill -0 $launcher 2>/dev/null || wait $launcher
  sleep 0.05
done
ranks=($(cat /proc/$launcher/task/*/children))
victim=${ranks[2]}
echo "--- kill -9 $victim ---"
kill -9 "$victim"
wait $launcher
