#include "planner/decode_cost.h"

#include <gtest/gtest.h>

#include "support/source_dir.h"

// Against what the authors of tree attention measured (arXiv 2408.04093) on servers of 8 H100.

namespace heddle::planner {
namespace {

double seconds(DecodeMethod method, const DecodeShape& shape) {
  static const Machine machine = read_machine(source_dir() + "/configs/systems/h100-dgx-ndr.toml");
  const ContextTimes times = decode_times(machine, shape, DType::bf16);
  return play_forward(make_decode_plan(method, shape), times).makespan;
}

DecodeShape one_block(int ranks, std::int64_t context) {
  return {.ranks = ranks, .context = context, .heads = 16, .key_heads = 16, .head_dim = 128};
}

TEST(DecodeCost, ARingGrowsWithItsContextAsLlamaDidOnEightGpus) {
  // Llama 3.1 8B, ten tokens, 32 layers, key heads expanded to 32. Seconds of ring less those of
  // tree: 1.97 at 32K and 5.30 at 256K; what does not grow is the program's.
  const auto ring_over_tree = [](std::int64_t context) {
    const DecodeShape shape{
        .ranks = 8, .context = context, .heads = 32, .key_heads = 32, .head_dim = 128};
    return 10 * 32 * (seconds(DecodeMethod::ring, shape) - seconds(DecodeMethod::tree, shape));
  };
  const double measured = (8.19 - 2.89) - (2.57 - 0.60);
  EXPECT_NEAR(ring_over_tree(256 << 10) - ring_over_tree(32 << 10), measured, 0.15 * measured);
}

TEST(DecodeCost, ATreeIsFasterByFarMoreThanEightTimesOn128Gpus) {
  const DecodeShape shape = one_block(128, 5'120'000);
  const double tree = seconds(DecodeMethod::tree, shape), ring = seconds(DecodeMethod::ring, shape);
  // 40,000 keys from memory, and seven exchanges.
  EXPECT_GT(tree, 100e-6);
  EXPECT_LT(tree, 400e-6);
  // 127 times 313 MiB between servers.
  EXPECT_NEAR(ring, 127 * 4.0 * 40000 * 2048 / 35e9, 0.02 * ring);
  EXPECT_GT(ring / tree, 1000.0);
}

TEST(DecodeCost, EightTimesIsLeftOfItWhereACallTakes170MillisecondsMore) {
  // What was measured on 128 GPUs, "nearly 8 times". The 170 ms are chosen to give it: nothing that
  // is played here accounts for them.
  const DecodeShape shape = one_block(128, 5'120'000);
  const double call = 0.170;
  EXPECT_NEAR(
      (call + seconds(DecodeMethod::ring, shape)) / (call + seconds(DecodeMethod::tree, shape)),
      8.0, 0.15 * 8.0);
}

TEST(DecodeCost, ATreeTakesTheTimeOfItsShareAndARingThatOfAll) {
  // Twice the ranks with twice the tokens: a share stays the same.
  const double tree = seconds(DecodeMethod::tree, one_block(64, 2'560'000));
  EXPECT_LT(seconds(DecodeMethod::tree, one_block(128, 5'120'000)), 1.15 * tree);
  const double ring = seconds(DecodeMethod::ring, one_block(64, 2'560'000));
  EXPECT_NEAR(seconds(DecodeMethod::ring, one_block(128, 5'120'000)), 2.0 * ring, 0.05 * ring);
}

TEST(DecodeCost, GatheringTakesAsLongAsTheRingWhereLinksDecide) {
  const DecodeShape shape = one_block(16, 640'000);
  const double ring = seconds(DecodeMethod::ring, shape);
  EXPECT_NEAR(seconds(DecodeMethod::gather, shape), ring, 0.5 * ring);
  EXPECT_GT(seconds(DecodeMethod::gather, shape), 50 * seconds(DecodeMethod::tree, shape));
}

}  // namespace
}  // namespace heddle::planner
