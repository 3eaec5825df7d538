#include "nn/recompute.h"

#include <fmt/format.h>

#include <map>

#include "nn/family_blocks.h"

namespace heddle {
namespace {

using Halves = LayerRun::Halves;

class RecomputeOf : public testing::TestWithParam<const char*> {
 protected:
  std::string weight(const std::string& pattern) const {
    return fmt::format(fmt::runtime(pattern), 0) + ".weight";
  }

  void scale(const std::string& name, double factor) {
    for (Parameter* p : run_.store().parameters()) {
      if (p->parts.front().name != name) continue;
      for (double& value : p->value.host<double>()) value *= factor;
    }
  }

  /// By name.
  std::map<std::string, std::vector<double>> gradients() {
    std::map<std::string, std::vector<double>> all;
    for (const Parameter* p : run_.store().parameters()) {
      all[p->parts.front().name] = values_of(p->grad);
    }
    return all;
  }

  ModelSpec spec_ = reference_spec(GetParam());
  LayerRun run_{block(GetParam(), true)};
  LayerRun::Feed feed_ = run_.feed(1);
};

/// The second forward makes queries, keys and values from the weights that it finds. When these
/// change between the passes, attention would give something else: gradients behind it stay as they
/// were only if it is not computed again.
TEST_P(RecomputeOf, ABlockTakesAttentionsOutputFromItsFirstForward) {
  const std::string projection =
      weight(spec_.names.fused_qkv.empty() ? spec_.names.query : spec_.names.fused_qkv);
  for (const Halves halves : {Halves::together, Halves::apart}) {
    run_.begin_step();
    run_.pass(feed_, halves);
    const auto before = gradients();
    run_.begin_step();
    run_.pass(feed_, halves, [&] { scale(projection, 0.5); });
    const auto after = gradients();
    scale(projection, 2.0);
    EXPECT_NE(after.at(projection), before.at(projection)) << "nothing was computed again";
    for (const std::string& behind : {spec_.names.attention_out, spec_.names.down}) {
      EXPECT_EQ(after.at(weight(behind)), before.at(weight(behind))) << behind;
    }
  }
}

TEST_P(RecomputeOf, ABlockKeepsItsInputAndAttentionsOutputAndNothingElse) {
  run_.begin_step();
  const auto tokens = static_cast<std::size_t>(kSequences * kSeqLen);
  const auto width =
      static_cast<std::size_t>(spec_.hidden + spec_.heads * spec_.head_dim + spec_.heads);
  EXPECT_EQ(run_.saved_bytes_after_forward(feed_), tokens * width * sizeof(double));
}

INSTANTIATE_TEST_SUITE_P(Families, RecomputeOf,
                         testing::Values("gpt2", "gpt-neox", "gpt-neox-sequential", "llama",
                                         "mistral", "qwen2", "qwen3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace heddle
