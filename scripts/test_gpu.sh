#!/usr/bin/env bash
# What only a machine with a GPU can show, and takes a few minutes there: the tests that skip elsewhere, twenty-four meshes
# of processes over NCCL (on one GPU where there is one), eight of models with experts, every reference in float32 and in
# bf16, losses that do not depend on overlap, messages that do not touch host memory, a rank that is killed or stalls, one
# that is replaced while the others go on, compute-sanitizer over every operation and codec.
#   test_gpu.sh BUILD_FOLDER             all of it
#   test_gpu.sh BUILD_FOLDER meshes      just one part: tests, families, meshes, experts, overlaps, messages, kill, stall,
#                                        elastic or sanitizers
# Prints a line for each check; exits with 1 when one did not hold. HEDDLE_DEVICE=cpu tries families, meshes, experts,
# overlaps and elastic out elsewhere.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
build=$1
parts=${2:-tests families meshes experts overlaps messages kill stall elastic sanitizers}
device=${HEDDLE_DEVICE:-cuda}
heddle=$build/heddle
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

# check NAME COMMAND...: one line, and the end of the output where it failed.
check() {
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$folder/output" 2>&1; then
    printf 'ok    %s (%d s)\n' "$name" $((SECONDS - start))
  else
    printf 'FAIL  %s\n' "$name"
    tail -n 15 "$folder/output" | sed 's/^/      /'
    failed=1
  fi
}

tests() {
  check "memory, streams and their clocks" "$build/tests/tensor/tensor_test" --gtest_brief=1
  check "operations against the CPU" "$build/tests/ops/ops_cuda_test" --gtest_brief=1
  check "codecs against the CPU" "$build/tests/codec/codec_cuda_test" --gtest_brief=1
  check "references, checkpoints, memory" "$build/tests/verify/gpu_test" --gtest_brief=1
  check "rounding through 32 layers of shared attention" "$build/tests/parallel/parallel_test" --gtest_brief=1 \
    --gtest_filter='AttentionThrough32Layers.*'
}

# One process each; CPUs compute in float32.
# Rounded to bf16, a token may take the other of two experts with nearly equal scores: gpu_test (GpuExperts) says how far
# that may lead.
families() {
  local dtype model
  for dtype in f32 bf16; do
    [ "$device" = cpu ] && [ $dtype = bf16 ] && continue
    for model in tests/reference/models/*; do
      [ $dtype = bf16 ] && grep -q 'num_[a-z_]*experts"' "$model/config.json" && continue
      check "$(basename "$model") in $dtype" timeout 60 "$heddle" verify reference "$model" --set "run.device=$device" \
        --set "run.dtype=$dtype"
    done
  done
}

# mesh_of MODEL RANKS KEY=VALUE...
mesh_of() {
  local model=$1 ranks=$2 settings=() key
  shift 2
  for key in "$@"; do settings+=(--set "parallel.$key"); done
  check "$model, $ranks ranks, $*" timeout 180 "$heddle" verify reference "tests/reference/models/$model" \
    --ranks "$ranks" --set "run.device=$device" "${settings[@]}"
}
mesh() { mesh_of llama "$@"; }

meshes() {
  local zero
  for zero in 0 1 2 3; do mesh 2 dp=2 zero=$zero; done
  mesh 2 tp=2
  mesh 2 tp=2 sequence=false
  mesh 2 pp=2
  mesh 2 pp=2 schedule=zb-v chunks=2
  mesh 2 pp=2 schedule=interleaved chunks=2
  mesh 4 tp=2 pp=2
  mesh 4 dp=2 tp=2 zero=3
  mesh 4 dp=2 pp=2 zero=2
  mesh 4 dp=4 zero=1 overlap=false
  mesh 4 tp=2 pp=2 schedule=zb-h1 sequence=false
  mesh 8 dp=2 tp=2 pp=2 zero=1
  mesh 8 dp=4 tp=2 zero=3
  mesh 2 cp=2 context=ring
  mesh 2 cp=2 context=ulysses
  mesh 3 cp=3 context=lightseq
  mesh 4 cp=4 context=tokenring
  mesh 4 cp=4 context=usp context_heads=2
  mesh 4 cp=2 tp=2 context=gather
  mesh 4 cp=2 pp=2
  mesh 4 cp=2 dp=2 zero=3 context=ring context_order=striped
}

# What a step of a model with experts copies to the host, as CUPTI sees it: its sums and the experts' load, at its end.
host_copies_of_steps() {
  local seen=$folder/seen-copies
  rm -f "$seen"
  CUDA_INJECTION64_PATH=$PWD/$build/tests/comm/libcuda_copies.so HEDDLE_COPIES=$seen \
    "$heddle" bench train --model tests/reference/models/olmoe --device cuda --dtype bf16 --batch 2 --seq 32 \
    --steps "$1" >&2 || return 1
  awk '$1 == "DtoH" { sum += $3 } END { print sum + 0 }' "$seen"
}
two_host_copies_a_step() {
  local few many
  few=$(host_copies_of_steps 2) && many=$(host_copies_of_steps 5) || return 1
  echo "copies to the host: $few in 2 steps, $many in 5"
  [ "$few" -gt 0 ] && [ $((many - few)) = 6 ]
}

experts() {
  mesh_of mixtral 2 dp=2 ep=2
  mesh_of mixtral 4 dp=4 ep=4 zero=1
  mesh_of mixtral 4 dp=2 pp=2 ep=2 zero=2
  mesh_of olmoe 2 tp=2 ep=2
  mesh_of olmoe 4 dp=2 tp=2 ep=2 etp=2
  mesh_of olmoe 2 dp=2 ep=2 ep_exchange=degree=2
  mesh_of qwen3-moe 4 dp=2 tp=2 ep=2 zero=3
  mesh_of qwen3-moe 8 dp=2 tp=2 pp=2 ep=2 etp=2
  [ "$device" = cpu ] || check "experts: a step copies to the host twice, at its end" two_host_copies_a_step
}

make_text() { [ -e "$folder/text.jsonl" ] || "$heddle" demo-text --bytes 200000 --out "$folder/text.jsonl"; }

# train NAME RANKS KEY=VALUE...: the demo's model on a little of its text, into the run folder NAME.
train() {
  local name=$1 ranks=$2 settings=() key
  shift 2
  for key in "run.device=$device" "run.dir=$folder/$name" "data.train=$folder/text.jsonl" \
    "data.tokenizer=$folder/tokenizer.json" train.tokens_per_step=8192 train.microbatch=2 \
    train.eval_every=0 train.sample_every=0 optim.warmup_steps=0 observe.console_every=1 "$@"; do
    settings+=(--set "$key")
  done
  if [ ! -e "$folder/tokenizer.json" ]; then
    make_text
    "$heddle" tokenizer train "$folder/text.jsonl" --vocab 512 --special '<|endoftext|>' \
      --out "$folder/tokenizer.json"
  fi
  exec "$heddle" train examples/01_tiny_cpu/run.toml --fresh --ranks "$ranks" "${settings[@]}"
}

# The losses and norms of all steps, to the last digit.
curve() { grep -oE '"(loss|grad_norm)":[^,}]*' "$folder/$1/metrics.jsonl"; }

# equal RANKS KEY=VALUE...: with overlap and without, and once more with it.
equal_curves() {
  local run
  for run in true false again; do
    (train $run "$@" train.steps=6 run.deterministic=true parallel.overlap="${run/again/true}") || return 1
  done
  [ "$(curve true | wc -l)" -ge 12 ] && [ "$(curve true)" = "$(curve false)" ] &&
    [ "$(curve true)" = "$(curve again)" ]
}
equal() { check "$1 ranks, ${*:2}: with and without overlap, and again" equal_curves "$@"; }

overlaps() {
  equal 2 parallel.dp=2 parallel.zero=2
  equal 4 parallel.dp=2 parallel.tp=2 parallel.zero=3
  equal 4 parallel.dp=2 parallel.pp=2 parallel.zero=1
}

# copies STEPS RANKS KEY=VALUE...: how many messages of a pipeline CUPTI sees copied between GPU and host. A message is 4
# sequences x 256 tokens x 128 f32; nothing else has that size.
message_bytes=$((4 * 256 * 128 * 4))
copies() {
  local steps=$1 seen=$folder/seen-copies
  shift
  rm -f "$seen"
  (export CUDA_INJECTION64_PATH=$PWD/$build/tests/comm/libcuda_copies.so HEDDLE_COPIES=$seen
    train copies "$@" train.steps="$steps" train.microbatch=4) >&2 || return 1
  grep -E "(DtoH|HtoD) $message_bytes " "$seen" | awk '{ sum += $3 } END { print sum + 0 }'
}
# Those of the first step go through the host, no others.
without_host_copies() {
  local few many
  few=$(copies 2 "$@") && many=$(copies 5 "$@") || return 1
  echo "copies of messages: $few in 2 steps, $many in 5"
  [ "$few" -gt 0 ] && [ "$few" = "$many" ]
}

messages() {
  check "messages on a GPU: both ways, tags in any order" timeout 120 "$build/tests/comm/nccl_ranks" messages
  check "gathers on a GPU: before and behind an exchange" timeout 120 "$build/tests/comm/nccl_ranks" gathers
  check "pp 2: from the second step on no message is copied to the host" without_host_copies 2 parallel.pp=2
  check "pp 4: from the second step on no message is copied to the host" without_host_copies 4 parallel.pp=4
  check "pp 2, interleaved: from the second step on no message is copied" without_host_copies 2 parallel.pp=2 \
    parallel.schedule=interleaved parallel.chunks=2
}

# A rank that lives but does not come to a call, and a process that is stopped: the verdict has to name it within 5 s of
# the limit.
stall() {
  local fault rank
  for fault in freeze stop; do
    for rank in 0 2; do
      check "$fault of rank $rank" timeout 90 "$build/tests/comm/nccl_ranks" $fault $rank 5
      tail -n 1 "$folder/output" | sed 's/^/      /'
    done
  done
}

# The third of four processes is killed while it trains: the others have to end within 10 s, with status 4 and a message
# that names it.
killed_rank() {
  train killed 4 train.steps=100000 parallel.zero=2 >"$folder/train" 2>&1 &
  local parent=$! i
  for i in $(seq 120); do
    sleep 0.5
    grep -q 'step 2[0-9]*/' "$folder/train" && break
  done
  local victim begin
  victim=$(pgrep -P $parent | sed -n 3p)
  begin=$(date +%s%N)
  kill -9 "$victim"
  wait $parent
  local status=$? milliseconds=$((($(date +%s%N) - begin) / 1000000))
  tail -n 3 "$folder/train"
  echo "status $status after $milliseconds ms"
  [ $status = 4 ] && [ $milliseconds -lt 10000 ] && grep -q 'rank 2 is gone' "$folder/train" &&
    ! pgrep -f "run.dir=$folder/killed"
}

kill_() { check "a rank is killed" killed_rank; }

# A rank of four is killed in the middle of a step and the run goes on: a step of four ranks within 15 s, every step once,
# and where sums have the same order the weights and states of a run that nobody disturbs, bit for bit.
replaced() {
  make_text >/dev/null
  check "replaced: $*" timeout 400 python3 benchmarks/recover/replaced.py --heddle "$heddle" --text "$folder/text.jsonl" \
    --out "$folder/replaced" --device "$device" --mesh "$@"
  grep -E 'a step\)|undisturbed' "$folder/output" | sed 's/^ */      /'
}
elastic() {
  replaced dp4
  replaced dp4 --again 2
  replaced dp2xpp2
  replaced dp2xpp2 --spare --exact
  replaced pp4 --exact
  replaced pp4 --freeze
  replaced sites2xdp2
  replaced sites4
}

# Whether all tests of a sanitizer's log passed, and it has nothing to say; of racecheck, nothing of a kernel of ours, since
# it reports cuDNN's backward too. Not with --kernel-name, with which the racecheck of CUDA 13.0 fails in itself in cuBLASLt's
# kernels.
is_clean() {
  ! grep -m 5 -E '(access at|   at) (void )?heddle::' "$1" && grep -q PASSED "$1" &&
    grep -E ' ERROR SUMMARY: 0 errors|RACECHECK SUMMARY' "$1"
}

# Shards run side by side, since the CPU's part of a test takes most of its time.
sanitizers() {
  local tool shard shards=4 logs=() log
  for tool in memcheck racecheck initcheck; do
    for shard in $(seq 0 $((shards - 1))); do
      log=$folder/$tool$shard
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout 900 compute-sanitizer --tool $tool --print-limit 10000 \
        "$build/tests/ops/ops_cuda_test" --gtest_brief=1 >"$log" 2>&1 &
      logs+=("$log")
    done
    log=$folder/$tool-codecs
    timeout 900 compute-sanitizer --tool $tool --print-limit 10000 "$build/tests/codec/codec_cuda_test" --gtest_brief=1 \
      >"$log" 2>&1 &
    logs+=("$log")
  done
  wait
  for log in "${logs[@]}"; do
    check "$(basename "$log") of $shards: $(grep -oE 'SUMMARY: .*' "$log")" is_clean "$log"
  done
}

if [ "$device" = cuda ] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo "test_gpu.sh: no GPU here, where every test would only be skipped; HEDDLE_DEVICE=cpu tries families, meshes, experts, overlaps and elastic" >&2
  exit 2
fi
for part in $parts; do
  case $part in
    tests | families | meshes | experts | overlaps | messages | stall | elastic | sanitizers) "$part" ;;
    kill) kill_ ;;
    *) echo "test_gpu.sh: no part '$part'; tests, families, meshes, experts, overlaps, messages, kill, stall, elastic or sanitizers" >&2; exit 2 ;;
  esac
done
exit $failed
