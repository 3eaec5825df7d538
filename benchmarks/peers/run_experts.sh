#!/usr/bin/env bash
# All that is measured of models with experts on one GPU, in less than nine minutes: products of experts beside dense ones,
# copies to the host, memory beside one-hot products, and training steps beside compiled PyTorch in alternation.
#   run_experts.sh BUILD_FOLDER [PYTHON] [RESULTS_FOLDER]
# PYTHON has PyTorch; without it that part is left out. A part that takes too long or fails is told, and the next one begins.
set -uo pipefail
build=$(cd "$1" && pwd) || exit
python=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
results=${3:-$here/../results}
cd "$here/../.." || exit
heddle=$build/heddle

# part SECONDS NAME COMMAND...
part() {
  local limit=$1 name=$2 start=$SECONDS
  shift 2
  printf '\n== %s\n' "$name"
  timeout "$limit" "$@" || printf '== %s: status %d after %d s\n' "$name" $? $((SECONDS - start))
}

nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader
part 60 "the tests of experts" "$build/tests/verify/gpu_test" --gtest_brief=1 --gtest_filter='GpuExperts.*'
part 60 "meshes, and copies to the host" scripts/test_gpu.sh "$build" experts
part 60 "operations" "$heddle" bench ops --device cuda --dtype bf16 --filter experts
part 30 "one layer of experts: its memory (with HEDDLE_BENCHMARKS)" "$build/benchmarks/layer_memory"
if [ -z "$python" ]; then
  for model in "olmoe-4-layers --batch 8 --seq 4096" "mixtral-8x300m --batch 6 --seq 4096"; do
    # shellcheck disable=SC2086 # words of a command
    part 60 "$model" "$heddle" bench train --device cuda --dtype bf16 --steps 10 --model "$here/models/"${model/ /.json }
  done
  exit
fi
part 40 "one layer with one-hot products" "$python" "$here/one_hot_memory.py"
for model in olmoe-4-layers mixtral-8x300m; do
  part 130 "$model beside PyTorch" "$python" "$here/run_peers.py" --device cuda --python "$python" --heddle "$heddle" \
    --models $model --rounds 3 --results "$results/$model"
done
