#!/usr/bin/env bash
# A benchmark on nodes with two networks: a slow one between them, and a faster one within each. Every rank is in a network
# namespace of its own with an adapter to either (tc tbf, both directions), so that neither network takes anything from the
# other.
#   shaped_nodes.sh NODES PER_NODE MBIT_BETWEEN MBIT_WITHIN PROGRAM [argument ...]
# PROGRAM is started once for each rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Needs root. With
# HEDDLE_PACKET_US=N a packet between nodes, of up to 64 KB, costs its sender N microseconds beside its bytes, as where an
# adapter takes so many messages a second.
set -euo pipefail
nodes=$1
per_node=$2
between=$3
within=$4
shift 4
ranks=$((nodes * per_node))
name=hdn$$

cleanup() {
  for ((i = 0; i < ranks; i++)); do ip netns del "$name-$i" 2>/dev/null || true; done
  for ((i = 0; i <= nodes; i++)); do ip link del "${name}b$i" 2>/dev/null || true; done
}
trap cleanup EXIT

# What a link that was idle may send at full speed: a few packets, so that small messages take their time too.
burst=5kb
shaped() { tc "${@:2}" root tbf rate "$1mbit" burst $burst limit 64mb; }
packet_us=${HEDDLE_PACKET_US:-0}
packet=65000
costly() {
  local cost=$((packet_us * $1 / 8))
  tc "${@:2}" root tbf rate "$1mbit" burst $((packet + cost + 100)) limit 64mb overhead $cost
}

# A switch for each node, and the last one between them.
for ((i = 0; i <= nodes; i++)); do
  ip link add "${name}b$i" type bridge
  ip link set "${name}b$i" up
done
for ((i = 0; i < ranks; i++)); do
  node=$((i / per_node))
  space=$name-$i
  ip netns add "$space"
  ip -n "$space" link set lo up
  ip -n "$space" addr add "10.77.0.$((i + 1))/32" dev lo
  for network in near far; do
    port=${name}$([ $network = near ] && echo n || echo f)$i
    switch=${name}b$([ $network = near ] && echo $node || echo $nodes)
    rate=$([ $network = near ] && echo "$within" || echo "$between")
    ip link add "$port" type veth peer name $network netns "$space"
    ip link set "$port" master "$switch" up
    ip -n "$space" link set $network up
    # Segments are cut before they are shaped: a packet never has more than the burst.
    ip netns exec "$space" ethtool -K $network tso off gso off >/dev/null 2>&1 || true
    if [ $network = far ] && ((packet_us > 0)); then
      ip link set "$port" mtu $packet
      ip -n "$space" link set far mtu $packet
      costly "$rate" -n "$space" qdisc add dev far
      continue
    fi
    shaped "$rate" -n "$space" qdisc add dev $network
    shaped "$rate" qdisc add dev "$port"
  done
  for ((j = 0; j < ranks; j++)); do
    ((j == i)) && continue
    network=$([ $((j / per_node)) = $node ] && echo near || echo far)
    ip -n "$space" route add "10.77.0.$((j + 1))/32" dev $network src "10.77.0.$((i + 1))"
  done
  # Rates do not change and queues have room for all that is under way: nothing has to be probed for.
  ip netns exec "$space" sysctl -qw net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_slow_start_after_idle=0
done

pids=()
for ((i = ranks - 1; i >= 0; i--)); do
  ip netns exec "$name-$i" env RANK="$i" WORLD_SIZE="$ranks" LOCAL_RANK=$((i % per_node)) LOCAL_WORLD_SIZE="$per_node" \
    MASTER_ADDR=10.77.0.1 MASTER_PORT=29511 "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
