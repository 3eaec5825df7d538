#include "nn/experts/experts.h"

#include <mutex>
#include <numeric>

#include "comm/threads/thread_world.h"
#include "nn/recompute.h"
#include "nn/sample_layers.h"
#include "ops/elementwise.h"

namespace heddle {
namespace {

constexpr std::int64_t kWidth = 9, kExperts = 6;
constexpr double kScale = 0.37;

/// A router on its own, in double precision, on some of the rows of one x.
class RouterRun {
 public:
  RouterRun(const Router::Options& options, std::int64_t begin, std::int64_t end)
      : weight_(parameter("router", {kExperts, kWidth})), router_(weight_, options) {
    weight_->value = uniform({kExperts, kWidth}, 1.0, 1, memory_);
    weight_->grad = memory_.zeros({kExperts, kWidth}, DType::f64, MemoryTag::gradients);
    x_ = uniform({12, kWidth}, 1.5, 2, memory_).slice(0, begin, end);
  }

  /// Gradients of what the losses add: of x and of the router's rows.
  std::vector<double> input_gradient() {
    Saved saved;
    const MicroBatch batch;
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch, .loss_scale = kScale};
    const Routing routing = router_.route(x_, saved, ctx);
    const Tensor none =
        memory_.zeros(routing.weights_TK.shape(), DType::f64, MemoryTag::activations);
    const Tensor dx = router_.backward_input(none, {}, saved, ctx);
    router_.backward_weight(x_, saved, ctx);
    EXPECT_TRUE(saved.empty());
    return values_of(dx);
  }
  const Parameter& weight() const { return *weight_; }
  const Tensor& x() const { return x_; }

  /// The value of the losses, from logits; which experts are chosen does not change.
  double value(const Router::Options& options) {
    Saved saved;
    const MicroBatch batch;
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch};
    ctx.keep = Keep::nothing;
    const auto chosen = router_.route(x_, saved, ctx).experts_TK;
    std::vector<double> share(kExperts, 0.0);
    const std::int64_t T = x_.size(0);
    for (const std::int32_t e : chosen.host<std::int32_t>()) {
      share[static_cast<std::size_t>(e)] += 1.0 / static_cast<double>(T);
    }
    double sum = 0.0;
    for (std::int64_t t = 0; t < T; ++t) {
      std::vector<double> p;
      for (std::int64_t e = 0; e < kExperts; ++e) {
        double logit = 0.0;
        for (std::int64_t i = 0; i < kWidth; ++i) {
          logit +=
              x_.data<double>()[t * kWidth + i] * weight_->value.data<double>()[e * kWidth + i];
        }
        p.push_back(std::exp(logit));
      }
      const double all = std::accumulate(p.begin(), p.end(), 0.0);
      for (std::size_t e = 0; e < p.size(); ++e) {
        sum += options.loss.balance * kExperts * share[e] * p[e] / all;
      }
      sum += options.loss.z * std::log(all) * std::log(all);
    }
    return kScale * sum;
  }

 private:
  Memory memory_;
  Stream stream_{1};
  std::shared_ptr<Parameter> weight_;
  Router router_;
  Tensor x_;
};

const Router::Options kBalanced{.per_token = 2, .loss = {.balance = 0.3, .z = 0.1}};

TEST(Router, InjectsTheGradientsOfItsLosses) {
  for (const ops::RouterLoss loss : {ops::RouterLoss{.balance = 0.3}, ops::RouterLoss{.z = 0.1},
                                     ops::RouterLoss{.balance = 0.3, .z = 0.1}}) {
    Router::Options options = kBalanced;
    options.loss = loss;
    RouterRun run(options, 0, 12);
    const auto dx = run.input_gradient();
    const auto dw = values_of(run.weight().grad);
    const auto value = [&] { return run.value(options); };
    expect_gradient(run.x(), dx, value, "x");
    expect_gradient(run.weight().value, dw, value, "the router's rows");
  }
}

TEST(Router, BalancesAMicroBatchThatRanksShareAsOneRankDoes) {
  RouterRun whole(kBalanced, 0, 12);
  const auto dx = whole.input_gradient(), dw = values_of(whole.weight().grad);
  for (const std::vector<std::int64_t>& ends :
       {std::vector<std::int64_t>{6, 12}, {2, 12}, {3, 4, 9, 12}}) {
    std::mutex mutex;
    std::vector<double> shared_dx(dx.size(), 0.0), shared_dw(dw.size(), 0.0);
    run_ranks(static_cast<int>(ends.size()), [&](World& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      const std::int64_t begin = rank == 0 ? 0 : ends[rank - 1];
      Router::Options options = kBalanced;
      options.sharers = {&world.all()};
      RouterRun run(options, begin, ends[rank]);
      const auto own = run.input_gradient();
      const std::lock_guard lock(mutex);
      std::ranges::copy(own, shared_dx.begin() + begin * kWidth);
      const auto part = values_of(run.weight().grad);
      for (std::size_t i = 0; i < part.size(); ++i) shared_dw[i] += part[i];
    });
    for (std::size_t i = 0; i < dx.size(); ++i) ASSERT_NEAR(shared_dx[i], dx[i], 1e-12);
    for (std::size_t i = 0; i < dw.size(); ++i) ASSERT_NEAR(shared_dw[i], dw[i], 1e-12);
  }
}

/// When the router changes between the passes, a second choice would be another one.
TEST(Experts, AreNotChosenAgainByRecomputation) {
  const LayerCase layer{.name = "recomputed",
                        .make = [](Memory&) -> std::unique_ptr<Layer> {
                          return std::make_unique<Recompute>(experts(kWidth, {.per_token = 2}),
                                                             kWidth);
                        },
                        .width = kWidth};
  LayerRun run(layer);
  const auto feed = run.feed(1);
  for (const auto halves : {LayerRun::Halves::together, LayerRun::Halves::apart}) {
    run.begin_step();
    run.pass(feed, halves);
    const auto before = run.gradients();
    run.begin_step();
    const auto negate = [&] {
      for (double& value : run.store().parameters()[0]->value.host<double>()) value = -value;
    };
    run.pass(feed, halves, negate);
    EXPECT_EQ(run.gradients(), before);
    negate();
  }
}

/// Tokens that are all alike choose the same experts: others have no rows, and no gradient.
TEST(Experts, ThatNobodyChoosesHaveNoGradient) {
  const LayerCase layer{
      .name = "experts",
      .make = [](Memory&) -> std::unique_ptr<Layer> { return experts(kWidth, {.per_token = 2}); },
      .width = kWidth};
  LayerRun run(layer);
  auto feed = run.feed(1);
  const auto x = feed.x.host<double>();
  for (std::size_t i = static_cast<std::size_t>(kWidth); i < x.size(); ++i) {
    x[i] = x[i % static_cast<std::size_t>(kWidth)];
  }
  run.begin_step();
  run.pass(feed, LayerRun::Halves::together);
  int chosen = 0;
  const auto up = run.gradients()[1];
  const std::size_t of_one = up.size() / kExperts;
  for (std::size_t e = 0; e < kExperts; ++e) {
    const auto begin = up.begin() + static_cast<std::ptrdiff_t>(e * of_one);
    const auto zeros = std::count(begin, begin + static_cast<std::ptrdiff_t>(of_one), 0.0);
    EXPECT_TRUE(zeros == 0 || zeros == static_cast<std::ptrdiff_t>(of_one)) << zeros;
    chosen += zeros == 0 ? 1 : 0;
  }
  EXPECT_EQ(chosen, 2);
}

/// Finer experts, of which a token uses more, keep as much as coarse ones but for the routing.
TEST(Experts, KeepTheSameWhenTheyAreMadeFiner) {
  constexpr std::int64_t kHidden = 64;
  std::vector<std::size_t> kept;
  for (const std::int64_t finer : {1, 2, 4, 8}) {
    const std::int64_t count = 8 * finer, width = 128 / finer;
    const Experts layer(std::make_unique<Router>(parameter("router", {count, kHidden}),
                                                 Router::Options{.per_token = 2 * finer}),
                        Experts::Weights{.up = parameter("up", {count * 2 * width, kHidden}),
                                         .down = parameter("down", {count * kHidden, width})});
    const Cost cost = layer.cost({.sequences = 2, .seq_len = 64});
    constexpr std::size_t kTokens = 128;
    const std::size_t order =
        4 * (kTokens * static_cast<std::size_t>(4 * finer) + static_cast<std::size_t>(count) + 1);
    kept.push_back(cost.saved_bytes - cost.dear_bytes - order);
    EXPECT_EQ(kept.back(), kept.front());
    EXPECT_LT(static_cast<double>(cost.dear_bytes + order), 0.4 * static_cast<double>(kept[0]));
  }
}

}  // namespace
}  // namespace heddle
