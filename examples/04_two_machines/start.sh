#!/usr/bin/env bash
# Starts this machine's rank of a run on two machines. Run it on both, from the top folder, with the same token file.
#   start.sh RANK ADDRESS_OF_RANK_0 [what else heddle train takes]
set -euo pipefail
rank=$1 address=$2
shift 2
export RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1      # one rank on each machine
export MASTER_ADDR=$address MASTER_PORT=${MASTER_PORT:-29500}       # ranks meet at the port after it: 29501
[ -n "${HEDDLE_TOKEN:-}" ] || export HEDDLE_TOKEN_FILE=${HEDDLE_TOKEN_FILE:-runs/token}      # only who has it gets in
exec heddle train examples/04_two_machines/run.toml "$@"
