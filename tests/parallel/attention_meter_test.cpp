#include "parallel/sequence/attention_meter.h"

#include <chrono>
#include <mutex>
#include <thread>

#include "parallel/context_attention_testing.h"

namespace heddle {
namespace {

constexpr int kLayer = 3;
constexpr auto kLate = std::chrono::milliseconds(200);

struct Metered {
  std::map<int, AttentionTimes> times;
  std::int64_t pairs_of_plan = 0;
};

/// Forward and backward of one layer, `late` beginning its forward after the others.
std::vector<Metered> metered(const ContextShape& shape, int late, bool is_on) {
  std::vector<Metered> by_rank(static_cast<std::size_t>(shape.ranks));
  run_ranks(shape.ranks, [&](World& world) {
    Memory memory;
    Stream stream(1);
    const auto meter = std::make_shared<AttentionMeter>();
    const auto context = make_rank_context(shape, world.rank(), meter);
    const std::int64_t tokens =
        tokens_in(context->plan.held[static_cast<std::size_t>(world.rank())]);
    const MicroBatch batch{.ids = memory.alloc({1, tokens}, DType::i32, MemoryTag::data),
                           .targets = {},
                           .positions = {},
                           .first_key = {},
                           .context = context};
    const AttentionShape heads = attention_of(shape);
    ContextAttention layer(heads, 1.0, kLayer, world.all());
    const auto zeros = [&](std::int64_t width) {
      return memory.zeros({tokens, width}, DType::f32, MemoryTag::activations);
    };
    Ctx ctx{.stream = stream, .memory = memory, .batch = batch};
    Saved saved;
    if (is_on) meter->start();
    world.all().barrier();
    if (world.rank() == late) std::this_thread::sleep_for(kLate);
    layer.forward(zeros(heads.qkv_width()), saved, ctx);
    layer.backward_input(zeros(heads.out_width()), saved, ctx);
    Metered& own = by_rank[static_cast<std::size_t>(world.rank())];
    own = {meter->take(), context->head_pairs};
    EXPECT_TRUE(meter->take().empty());
  });
  return by_rank;
}

TEST(AttentionMeter, FindsWhoWaitsForARankThatIsLate) {
  constexpr int kForward = 0;
  for (const ContextMethod method : {ContextMethod::ring, ContextMethod::ulysses,
                                     ContextMethod::lightseq, ContextMethod::tokenring}) {
    const ContextShape shape{
        .method = method, .ranks = 3, .tokens = 30, .heads = 6, .key_heads = 3, .head_dim = 8};
    const auto by_rank = metered(shape, 1, true);
    const double late = std::chrono::duration<double>(kLate).count();
    double longest = 0;
    std::int64_t pairs = 0;
    for (const Metered& rank : by_rank) {
      ASSERT_EQ(rank.times.size(), 1u) << name_of(method);
      const AttentionTimes& times = rank.times.at(kLayer);
      for (const std::size_t pass : {0, 1}) {
        EXPECT_GE(times.exposed[pass], 0.0);
        EXPECT_LE(times.exposed[pass], times.seconds[pass]) << name_of(method);
        EXPECT_GT(times.seconds[pass], 0.0);
      }
      EXPECT_EQ(times.head_pairs, rank.pairs_of_plan);
      pairs += times.head_pairs;
      longest = std::max(longest, times.exposed[kForward]);
    }
    EXPECT_EQ(pairs, 6 * 30 * 31 / 2) << name_of(method);
    EXPECT_GE(longest, 0.9 * late) << name_of(method);
    EXPECT_LT(by_rank[1].times.at(kLayer).exposed[kForward], longest) << name_of(method);
  }
}

TEST(AttentionMeter, TakesNothingWhereItWasNotStarted) {
  const ContextShape shape{.method = ContextMethod::ring, .ranks = 2, .tokens = 8, .head_dim = 8};
  for (const Metered& rank : metered(shape, 0, false)) EXPECT_TRUE(rank.times.empty());
}

}  // namespace
}  // namespace heddle
