// The two passes of a divided vocabulary against the ordinary head, in double precision. The
// holders are made one after another: what they exchange is put together by hand.

#include "nn/split_head.h"

#include <cmath>
#include <numeric>

#include "nn/layer_testing.h"
#include "nn/loss_head.h"

namespace heddle {
namespace {

constexpr std::int64_t kVocab = 11, kWidth = 4, kTokens = kSequences * kSeqLen;
constexpr double kLossScale = 0.37;

struct Result {
  std::vector<double> losses, dx, dw;  // dw of the whole table
};

class SplitHeadTest : public testing::Test {
 protected:
  SplitHeadTest()
      : batch_(micro_batch({.name = "head", .make = {}, .is_loss = true, .vocab = kVocab}, 3,
                           memory_)),
        x_(uniform({kTokens, kWidth}, 1.0, 5, memory_)),
        table_(uniform({kVocab, kWidth}, 3.0, 7, memory_)) {}

  Ctx ctx() {
    return {.stream = stream_, .memory = memory_, .batch = batch_, .loss_scale = kLossScale};
  }

  std::shared_ptr<Parameter> rows(std::int64_t begin, std::int64_t count) {
    auto made = parameter("w", {count, kWidth});
    made->value = memory_.zeros(made->shape, DType::f64, MemoryTag::parameters);
    made->grad = memory_.zeros(made->shape, DType::f64, MemoryTag::gradients);
    const auto whole = table_.host<double>();
    for (std::int64_t i = 0; i < count * kWidth; ++i) {
      const auto from = static_cast<std::size_t>(begin * kWidth + i);
      made->value.host<double>()[static_cast<std::size_t>(i)] =
          from < whole.size() ? whole[from] : 99.0;  // padding must not be seen
    }
    return made;
  }

  Result by_one_holder() {
    auto weight = rows(0, kVocab);
    LossHead head(weight, {.chunk_tokens = 5});
    Saved saved;
    Ctx context = ctx();
    const Tensor losses = head.forward(x_, saved, context);
    const Tensor dx = head.backward_input({}, saved, context);
    return {values_of(losses), values_of(dx), values_of(weight->grad)};
  }

  Result by_holders(std::int64_t holders, SplitHead::InputGrad input_grad) {
    const std::int64_t each = (kVocab + holders - 1) / holders;
    std::vector<std::shared_ptr<Parameter>> weights;
    std::vector<SplitHead> heads;
    std::vector<Saved> saved(static_cast<std::size_t>(holders));
    std::vector<SplitHead::Outgoing> outgoing;
    Ctx context = ctx();
    const Tensor all = memory_.alloc({holders, 3, kTokens}, DType::f64, MemoryTag::workspace);
    for (std::int64_t n = 0; n < holders; ++n) {
      const std::int64_t begin = std::min(kVocab, n * each);
      weights.push_back(rows(begin, each));
      heads.push_back(SplitHead(weights.back(),
                                {.holders = holders,
                                 .own = n,
                                 .each = each,
                                 .valid = std::min(kVocab, begin + each) - begin},
                                {}, input_grad));
      outgoing.push_back(heads.back().begin(x_, saved[static_cast<std::size_t>(n)], context));
      std::ranges::copy(outgoing.back().statistics_3T.host<double>(),
                        all.slice(0, n, n + 1).host<double>().begin());
    }
    Result result;
    result.dx.assign(static_cast<std::size_t>(kTokens * kWidth), 0.0);
    const auto add_dx = [&](const Tensor& part, double scale) {
      const auto values = part.host<double>();
      for (std::size_t i = 0; i < values.size(); ++i) result.dx[i] += scale * values[i];
    };
    for (std::size_t n = 0; n < heads.size(); ++n) {
      const auto merged = SplitHead::allocate_merged(outgoing[n].statistics_3T, context);
      SplitHead::merge(heads[n].rows(), all, heads[n].targets(context), merged, stream_);
      result.losses = values_of(merged.loss_T);
      if (input_grad == SplitHead::InputGrad::early) {
        SplitHead::finish_product(outgoing[n], merged, stream_);
        add_dx(outgoing[n].product_TD, kLossScale);
      }
      const Tensor part = heads[n].finish(merged.divisor_T, saved[n], context);
      EXPECT_EQ(part.defined(), input_grad == SplitHead::InputGrad::in_t);
      if (part.defined()) add_dx(part, 1.0);
      EXPECT_TRUE(saved[n].empty());
      const auto dw = weights[n]->grad.host<double>();
      result.dw.insert(result.dw.end(), dw.begin(), dw.end());
    }
    for (std::size_t i = static_cast<std::size_t>(kVocab * kWidth); i < result.dw.size(); ++i) {
      EXPECT_EQ(result.dw[i], 0.0) << "the gradient of padding";
    }
    result.dw.resize(static_cast<std::size_t>(kVocab * kWidth));
    return result;
  }

  Memory memory_;
  Stream stream_{1};
  MicroBatch batch_;
  Tensor x_, table_;
};

void expect_near(const std::vector<double>& made, const std::vector<double>& expected,
                 const char* what) {
  ASSERT_EQ(made.size(), expected.size()) << what;
  for (std::size_t i = 0; i < made.size(); ++i) {
    EXPECT_NEAR(made[i], expected[i], 1e-13) << what << " " << i;
  }
}

TEST_F(SplitHeadTest, GivesWhatTheWholeHeadGives) {
  const Result expected = by_one_holder();
  ASSERT_GT(std::accumulate(expected.losses.begin(), expected.losses.end(), 0.0), 1.0);
  for (const auto input_grad : {SplitHead::InputGrad::in_t, SplitHead::InputGrad::early}) {
    // Seven holders: the last has only padding.
    for (const std::int64_t holders : {1, 2, 3, 7}) {
      SCOPED_TRACE(holders);
      const Result made = by_holders(holders, input_grad);
      expect_near(made.losses, expected.losses, "loss");
      expect_near(made.dx, expected.dx, "dx");
      expect_near(made.dw, expected.dw, "dw");
    }
  }
}

TEST_F(SplitHeadTest, HoldsOutAgainstLogitsThatWouldOverflow) {
  for (double& value : x_.host<double>()) value *= 1000.0;
  const Result expected = by_one_holder();
  const Result made = by_holders(3, SplitHead::InputGrad::early);
  for (std::size_t i = 0; i < made.losses.size(); ++i) {
    EXPECT_TRUE(std::isfinite(made.losses[i]));
    EXPECT_NEAR(made.losses[i], expected.losses[i], 1e-9);
  }
  for (const double value : made.dx) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace heddle
