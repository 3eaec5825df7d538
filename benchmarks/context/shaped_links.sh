#!/usr/bin/env bash
# Ways to share attention over slow links: ranks in network namespaces of their own, each with a full-duplex link of a given
# rate (tc tbf) to a switch. Times every method in turns, beside what is predicted from the measured rates of kernels and links.
#   shaped_links.sh HEDDLE RANKS MBIT_PER_S [option of heddle bench context ...]
# Needs root. Prints what `heddle bench context` prints; --json adds a line for scripts.
set -euo pipefail
heddle=$(realpath "$1")
ranks=$2
rate=$3
shift 3
name=hdl$$

cleanup() {
  for ((i = 0; i < ranks; i++)); do ip netns del "$name-$i" 2>/dev/null || true; done
  ip link del "$name" 2>/dev/null || true
}
trap cleanup EXIT

ip link add "$name" type bridge
ip link set "$name" up
for ((i = 0; i < ranks; i++)); do
  ip netns add "$name-$i"
  ip link add "${name}p$i" type veth peer name eth0 netns "$name-$i"
  ip link set "${name}p$i" master "$name" up
  ip -n "$name-$i" addr add "10.77.0.$((i + 1))/24" dev eth0
  ip -n "$name-$i" link set eth0 up
  ip -n "$name-$i" link set lo up
  # Both directions: what a rank sends, and what it receives.
  tc -n "$name-$i" qdisc add dev eth0 root tbf rate "${rate}mbit" burst 256kb latency 400ms
  tc qdisc add dev "${name}p$i" root tbf rate "${rate}mbit" burst 256kb latency 400ms
done

pids=()
for ((i = ranks - 1; i >= 0; i--)); do
  ip netns exec "$name-$i" env RANK="$i" WORLD_SIZE="$ranks" LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
    MASTER_ADDR=10.77.0.1 MASTER_PORT=29511 "$heddle" bench context --threads 1 "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
