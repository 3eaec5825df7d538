#include "nn/chunked_product.h"

#include "nn/family_blocks.h"

namespace heddle {
namespace {

using Halves = LayerRun::Halves;

class InChunks : public testing::TestWithParam<const char*> {
 protected:
  struct Outcome {
    std::vector<double> dx;
    std::vector<std::vector<double>> gradients;
  };
  Outcome outcome(std::int64_t mlp_tokens, Halves halves = Halves::together) {
    LayerRun run(block(GetParam(), true, false, mlp_tokens));
    const auto feed = run.feed(1);
    run.begin_step();
    Outcome made;
    made.dx = run.pass(feed, halves);
    made.gradients = run.gradients();
    return made;
  }
};

void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-12 + 1e-11 * std::abs(b[i]));
}

constexpr std::int64_t kTokens = kSequences * kSeqLen;

TEST_P(InChunks, ABlockComputesWhatItDoesAtOnce) {
  const Outcome whole = outcome(kTokens);
  for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{3}, kTokens - 1}) {
    for (const Halves halves : {Halves::together, Halves::apart}) {
      const Outcome made = outcome(chunk, halves);
      expect_near(made.dx, whole.dx);
      ASSERT_EQ(made.gradients.size(), whole.gradients.size());
      for (std::size_t p = 0; p < made.gradients.size(); ++p) {
        expect_near(made.gradients[p], whole.gradients[p]);
      }
    }
  }
}

TEST_P(InChunks, OfAsManyTokensAsThereAreNoBitChanges) {
  const Outcome whole = outcome(0), one_chunk = outcome(kTokens);
  EXPECT_EQ(one_chunk.dx, whole.dx);
  EXPECT_EQ(one_chunk.gradients, whole.gradients);
}

INSTANTIATE_TEST_SUITE_P(Families, InChunks,
                         testing::Values("gpt2", "gpt-neox", "gpt-neox-sequential", "llama",
                                         "llama-linear-bias", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace heddle
