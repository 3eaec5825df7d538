#!/usr/bin/env bash
# A benchmark over slow links: ranks in network namespaces of their own, each with a full-duplex link of a given rate
# (tc tbf) to a switch.
#   shaped_links.sh HEDDLE RANKS MBIT_PER_S BENCH [option of heddle bench BENCH ...]
# BENCH is context (ways to share attention) or decode (ways to attend to a divided KV cache). Needs root. Prints what
# `heddle bench BENCH` prints; --json adds a line for scripts.
set -euo pipefail
heddle=$(realpath "$1")
ranks=$2
rate=$3
bench=$4
shift 4
name=hdl$$

cleanup() {
  for ((i = 0; i < ranks; i++)); do ip netns del "$name-$i" 2>/dev/null || true; done
  ip link del "$name" 2>/dev/null || true
}
trap cleanup EXIT

# What a link that was idle may send at full speed: little beside messages, but no less than the packets of one interrupt.
burst=64kb
if ((rate > 500)); then burst=128kb; fi
ip link add "$name" type bridge
ip link set "$name" up
for ((i = 0; i < ranks; i++)); do
  ip netns add "$name-$i"
  ip link add "${name}p$i" type veth peer name eth0 netns "$name-$i"
  ip link set "${name}p$i" master "$name" up
  ip -n "$name-$i" addr add "10.77.0.$((i + 1))/24" dev eth0
  ip -n "$name-$i" link set eth0 up
  ip -n "$name-$i" link set lo up
  # A link whose rate does not change needs no congestion control that probes for it, nor one that starts slowly again
  # when a connection was idle: acknowledgements wait behind what a rank sends itself, tens of milliseconds each time.
  ip netns exec "$name-$i" sysctl -qw net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_slow_start_after_idle=0
  # Both directions: what a rank sends, and what it receives. Queues have room for all that is under way: lost packets
  # are another subject.
  tc -n "$name-$i" qdisc add dev eth0 root tbf rate "${rate}mbit" burst $burst limit 64mb
  tc qdisc add dev "${name}p$i" root tbf rate "${rate}mbit" burst $burst limit 64mb
done

pids=()
for ((i = ranks - 1; i >= 0; i--)); do
  ip netns exec "$name-$i" env RANK="$i" WORLD_SIZE="$ranks" LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
    MASTER_ADDR=10.77.0.1 MASTER_PORT=29511 "$heddle" bench "$bench" --threads 1 "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
