#!/usr/bin/env bash
# What `make demo` runs once heddle is built: text, tokenizer, training, a story.
#   demo.sh PATH_TO_HEDDLE
set -euo pipefail
cd "$(dirname "$0")/.."
heddle=$1

bold="" plain=""
if [ -t 2 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain" >&2; }

# Shows a command as one would type it, then runs it.
run() {
  local shown="heddle" word
  for word in "$@"; do
    case "$word" in *[!A-Za-z0-9_./=-]*) word="'$word'" ;; esac
    shown+=" $word"
  done
  say "\$ $shown"
  "$heddle" "$@"
}

run demo-text --bytes 2000000 --out runs/demo-text/text.jsonl
run tokenizer train runs/demo-text/text.jsonl --vocab 512 --special '<|endoftext|>' \
  --out runs/demo-text/tokenizer.json
run train examples/01_tiny_cpu/run.toml --fresh
run generate runs/demo --prompt "Today Nora" --seed 7

say "The run is in runs/demo: open runs/demo/report.html, or try"
cat >&2 <<TRY
  $heddle generate runs/demo --prompt "Today Hugo is in the market." --temperature 0.5
  $heddle inspect runs/demo
  $heddle train examples/01_tiny_cpu/run.toml --set train.steps=1000 --set run.dir=runs/longer
TRY
