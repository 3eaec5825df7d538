#!/usr/bin/env bash
# What one and several connections between two ranks carry over long links, both ways at once: a table in Markdown.
#   shaped_sockets.sh BUILD_FOLDER [SECONDS [ROWS]]
# ROWS: only those that match this expression, as in '1 % lost reno auto'.
# Ranks are processes in network namespaces joined by tests/links (needs root). Rates are of content, beside that of the
# link, which also carries headers (4 %) and what is sent again.
set -euo pipefail
build=$(realpath "$1")
seconds=${2:-40}
rows=${3:-.}

# LINK_NAME MBIT SETTINGS SYSTEM_CONTROL SOCKETS
row() {
  local json chosen
  [[ "$1 $4 $5" =~ $rows ]] || return 0
  json=$(HEDDLE_SOCKETS=$5 "$build/tests/links/shaped_run" 2 --link $3 --sysctl "net.ipv4.tcp_congestion_control=$4" -- \
    "$build/heddle" bench link --warm-up 5 --seconds "$seconds" --json 2>/tmp/shaped_sockets.$$)
  chosen=$(grep -o 'Mbit/s each way (.*)' /tmp/shaped_sockets.$$ | sed 's/.*(\(.*\))/: \1/' || true)
  rm -f /tmp/shaped_sockets.$$
  python3 - "$1" "$2" "$4" "$5$chosen" "$json" <<'PYTHON'
import json, sys
link, mbit, control, sockets, report = sys.argv[1:]
rates = [8e-6 * one["bytes_per_second"] for one in json.loads(report)["links"]]
print(f"| {link} | {control} | {sockets} | {rates[0]:.1f}, {rates[1]:.1f} | {sum(rates) / 2 / float(mbit):.3f} |", flush=True)
PYTHON
}

echo "| link | the system's control | connections | Mbit/s, each way | of the link |"
echo "|---|---|---|---|---|"
lossy="rate=100mbit delay=100ms loss=1%"
row "100 Mbit/s, 200 ms, 1 % lost" 100 "$lossy" reno 1
row "100 Mbit/s, 200 ms, 1 % lost" 100 "$lossy" reno 16
row "100 Mbit/s, 200 ms, 1 % lost" 100 "$lossy" reno 128
row "100 Mbit/s, 200 ms, 1 % lost" 100 "$lossy" reno auto
row "100 Mbit/s, 200 ms, 1 % lost" 100 "$lossy" bbr 1
row "100 Mbit/s, 200 ms, 1 % lost" 100 "$lossy" bbr auto
row "100 Mbit/s, 100 ms" 100 "rate=100mbit delay=50ms" reno 1
row "100 Mbit/s, 100 ms" 100 "rate=100mbit delay=50ms" reno auto
row "500 Mbit/s, 0.2 ms" 500 "rate=500mbit delay=100us" reno 1
row "500 Mbit/s, 0.2 ms" 500 "rate=500mbit delay=100us" reno auto
