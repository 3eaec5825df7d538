#include "nn/experts/experts.h"

#include <array>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "comm/threads/thread_world.h"
#include "nn/recompute.h"
#include "nn/sample_layers.h"
#include "ops/cast.h"
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
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch, .router_scale = kScale};
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

// ---- Capacities ---------------------------------------------------------------------------------

TEST(Capacity, IsWhatFrameworksGive) {
  using Formula = Capacity::Formula;
  struct Case {
    Capacity capacity;
    std::int64_t tokens, experts, per_token, rows;
  };
  const Case cases[] = {
      {{.factor = 1.25}, 100, 8, 2, 32},  // ceil(31.25)
      {{.factor = 1.0}, 3, 8, 1, 1},
      {{.factor = 0.01}, 3, 8, 1, 1},
      {{.factor = 1.0, .formula = Formula::deepspeed}, 3, 8, 1, 4},
      {{.factor = 1.0, .formula = Formula::deepspeed, .least = 0}, 3, 8, 1, 1},
      {{.factor = 1.25, .formula = Formula::deepspeed}, 100, 8, 2, 32},
      {{.factor = 1.25, .formula = Formula::tutel}, 100, 8, 2, 32},  // 2 floor(1.25 * 13)
      {{.factor = 1.25, .formula = Formula::tutel, .multiple = 5}, 100, 8, 2, 35},
      {{.factor = -1.25, .formula = Formula::tutel, .multiple = 5}, 100, 8, 2, 32},
  };
  for (const auto& [capacity, tokens, experts, per_token, rows] : cases) {
    EXPECT_EQ(capacity.rows(tokens, experts, per_token), rows) << capacity.factor;
  }
  EXPECT_FALSE(Capacity{}.limits());
  EXPECT_TRUE(Capacity{.factor = -1.25}.limits());
}

TEST(Capacity, OfNothingIsRefused) {
  const Capacity none{.factor = 0.5, .formula = Capacity::Formula::tutel};
  try {
    none.rows(8, 8, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.capacity_factor = 0.5"), std::string::npos);
  }
}

/// A layer of experts in double precision, with what training leaves of some rows of one x.
struct LimitedRun {
  Memory memory;
  Stream stream{1};
  std::unique_ptr<Experts> layer;
  std::vector<std::shared_ptr<Parameter>> weights;
  Tensor x_TD, load;
  Saved saved;
  MicroBatch batch;

  LimitedRun(const Router::Options& options, const std::vector<std::int64_t>& tokens) {
    constexpr std::int64_t kInner = 4;
    const auto made = [&](const char* name, const Shape& shape, std::uint64_t seed) {
      auto p = parameter(name, shape);
      p->value = uniform(shape, 1.0, seed, memory);
      p->grad = memory.zeros(shape, DType::f64, MemoryTag::gradients);
      weights.push_back(p);
      return p;
    };
    const auto router = made("router", {kExperts, kWidth}, 1);
    layer = std::make_unique<Experts>(
        std::make_unique<Router>(router, options),
        Experts::Weights{.up = made("up", {kExperts * 2 * kInner, kWidth}, 2),
                         .down = made("down", {kExperts * kWidth, kInner}, 3)});
    const Tensor all = uniform({32, kWidth}, 1.5, 4, memory);
    x_TD = memory.alloc({static_cast<std::int64_t>(tokens.size()), kWidth}, DType::f64,
                        MemoryTag::activations);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::ranges::copy(all.select(0, tokens[i]).host<double>(),
                        x_TD.select(0, static_cast<std::int64_t>(i)).host<double>().begin());
    }
    auto places = std::make_shared<TokenPlaces>();
    places->of_whole = tokens;
    places->seq_len = 32;
    batch.ids = memory.alloc({1, x_TD.size(0)}, DType::i32, MemoryTag::data);
    batch.places = places;
    load = memory.zeros({1, kExperts + 2}, DType::f64, MemoryTag::communication);
  }

  Ctx ctx() {
    return {.stream = stream, .memory = memory, .batch = batch, .step = 5, .expert_load = load};
  }
  Tensor forward() {
    Ctx with = ctx();
    return layer->multiply(x_TD, {}, saved, with);
  }
  /// Gradients of the sum of the outputs: of x, then of the parameters.
  std::vector<std::vector<double>> backward() {
    Ctx with = ctx();
    const Tensor dy = memory.alloc(x_TD.shape(), DType::f64, MemoryTag::activations);
    ops::fill(dy, 1.0, stream);
    std::vector<std::vector<double>> all = {values_of(layer->backward_given(
        dy, [&] { return x_TD; }, saved, with))};
    for (const auto& p : weights) all.push_back(values_of(p->grad));
    return all;
  }
};

std::vector<std::int64_t> token_range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(end - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

constexpr ops::Victims kVictims[] = {ops::Victims::late_slots, ops::Victims::late_tokens,
                                     ops::Victims::unsure, ops::Victims::low_scores,
                                     ops::Victims::random};

/// W ranks of unequal shares, whose experts lie on all of them, drop what W groups of one process
/// drop.
TEST(Capacity, OfRanksIsThatOfGroups) {
  const std::vector<std::int64_t> ends = {13, 20, 32};
  for (const std::int64_t per_token : {1, 4}) {
    for (const ops::Victims victims : kVictims) {
      for (const bool renormalizes : {false, true}) {
        // 0 drops nothing; below 0 is Tutel's limit of what nothing-dropped would need.
        for (const double factor : {0.5, 1.25, 0.0, -1.25}) {
          const Router::Options options{
              .per_token = per_token,
              .rule = {.renormalize = per_token > 1},
              .gate = {.capacity = {.factor = factor,
                                    .formula = factor < 0.0 ? Capacity::Formula::tutel
                                                            : Capacity::Formula::megatron,
                                    .victims = victims,
                                    .renormalizes = renormalizes}}};
          std::vector<double> outputs, dx, dup, load(kExperts + 2, 0.0);
          std::int64_t begin = 0;
          for (const std::int64_t end : ends) {
            LimitedRun group(options, token_range(begin, end));
            const auto y = values_of(group.forward());
            outputs.insert(outputs.end(), y.begin(), y.end());
            const auto grads = group.backward();
            dx.insert(dx.end(), grads[0].begin(), grads[0].end());
            dup.resize(grads[2].size(), 0.0);
            for (std::size_t i = 0; i < dup.size(); ++i) dup[i] += grads[2][i];
            const auto own = values_of(group.load.select(0, 0));
            for (std::size_t i = 0; i < load.size(); ++i) load[i] += own[i];
            begin = end;
          }
          if (factor == 0.0) {
            EXPECT_EQ(load[kExperts], 0.0) << "choices dropped";
          }
          if (factor == 0.5) {
            EXPECT_GT(load[kExperts], 0.0) << "choices dropped";
          }
          if (per_token == 1 && factor == 0.5) {
            EXPECT_GT(load[kExperts + 1], 0.0) << "tokens dropped entirely";
          }
          std::mutex mutex;
          std::vector<double> of_ranks(outputs.size()), dx_of_ranks(dx.size()),
              load_of_ranks(load.size(), 0.0);
          run_ranks(3, [&](World& world) {
            const auto rank = static_cast<std::size_t>(world.rank());
            const std::int64_t first = rank == 0 ? 0 : ends[rank - 1];
            LimitedRun run(options, token_range(first, ends[rank]));
            const std::int64_t here = kExperts / 3;
            const auto part = [&](std::size_t which) {
              const auto& all = run.weights[which];
              const std::int64_t rows = all->shape[0] / kExperts;
              auto own = parameter("part", {here * rows, all->shape[1]});
              own->value =
                  all->value.slice(0, world.rank() * here * rows, (world.rank() + 1) * here * rows);
              own->grad = run.memory.zeros(own->shape, DType::f64, MemoryTag::gradients);
              return own;
            };
            const auto up = part(1), down = part(2);
            const auto alone = world.all().split(world.rank(), 0, "etp");
            run.layer = std::make_unique<Experts>(
                std::make_unique<Router>(run.weights[0], options),
                Experts::Weights{.up = up, .down = down}, nullptr,
                ExpertDivision{.exchange = std::make_unique<ExpertExchange>(
                                   ExpertRanks{.ep = &world.all(),
                                               .etp = alone.get(),
                                               .choice = std::make_shared<ExchangeChoice>(
                                                   ExchangeRequest(), 1, 3)},
                                   kExperts, "experts")});
            const auto y = values_of(run.forward());
            const auto grads = run.backward();
            const std::lock_guard lock(mutex);
            std::ranges::copy(y, of_ranks.begin() + first * kWidth);
            std::ranges::copy(grads[0], dx_of_ranks.begin() + first * kWidth);
            const auto own = values_of(run.load.select(0, 0));
            for (std::size_t i = 0; i < own.size(); ++i) load_of_ranks[i] += own[i];
            const auto dpart = values_of(up->grad);
            for (std::size_t i = 0; i < dpart.size(); ++i) {
              ASSERT_NEAR(dpart[i], dup[rank * dpart.size() + i], 1e-12);
            }
          });
          EXPECT_EQ(load_of_ranks, load);
          for (std::size_t i = 0; i < outputs.size(); ++i) {
            ASSERT_NEAR(of_ranks[i], outputs[i], 1e-13);
            ASSERT_NEAR(dx_of_ranks[i], dx[i], 1e-12);
          }
        }
      }
    }
  }
}

/// What a token is without the experts that had no room for it is nothing: the residual carries it.
TEST(Capacity, TokensThatWereDroppedEntirelyAreZero) {
  const Router::Options options{
      .per_token = 1, .rule = {.renormalize = false}, .gate = {.capacity = {.factor = 0.2}}};
  LimitedRun run(options, token_range(0, 32));
  const auto y = values_of(run.forward());
  int zeros = 0;
  for (std::int64_t t = 0; t < 32; ++t) {
    const auto begin = y.begin() + t * kWidth;
    zeros += std::all_of(begin, begin + kWidth, [](double v) { return v == 0.0; }) ? 1 : 0;
  }
  EXPECT_GT(zeros, 0);
  EXPECT_EQ(zeros, run.load.host<double>()[kExperts + 1]);
}

TEST(Capacity, LosesNothingWhereThereIsNoBackward) {
  const Router::Options options{.per_token = 2, .gate = {.capacity = {.factor = 0.2}}};
  LimitedRun limited(options, token_range(0, 32)), free({.per_token = 2}, token_range(0, 32));
  Ctx with = limited.ctx();
  with.keep = Keep::nothing;
  const auto y = values_of(limited.layer->multiply(limited.x_TD, {}, limited.saved, with));
  EXPECT_EQ(y, values_of(free.forward()));
  for (const double count : values_of(limited.load.select(0, 0))) EXPECT_EQ(count, 0.0);
}

/// A second forward finds the choices of the first: nothing is counted twice.
TEST(Load, IsCountedOnceWhereForwardRunsTwice) {
  LimitedRun run({.per_token = 2}, token_range(0, 32));
  Ctx with = run.ctx();
  with.keep = Keep::dear;
  run.layer->multiply(run.x_TD, {}, run.saved, with);
  const auto once = values_of(run.load.select(0, 0));
  with.keep = Keep::all;
  run.layer->prepare_given(run.x_TD, run.saved, with);
  EXPECT_EQ(values_of(run.load.select(0, 0)), once);
  EXPECT_EQ(std::accumulate(once.begin(), once.begin() + kExperts, 0.0), 64.0);
}

/// Noise and draws are of the token, whichever rank has it and beside whom.
TEST(Router, DrawsTheSameForATokenWhereverItIs) {
  for (const ops::Noise noise : {ops::Noise::gaussian, ops::Noise::gumbel}) {
    const Router::Options options{.per_token = 2, .gate = {.noise = noise, .noise_scale = 3.0}};
    LimitedRun all(options, token_range(0, 32)), some(options, {3, 17, 4});
    const auto y = values_of(all.forward()), own = values_of(some.forward());
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t token = std::array<std::size_t, 3>{3, 17, 4}[i];
      for (std::size_t d = 0; d < kWidth; ++d) {
        EXPECT_NEAR(own[i * kWidth + d], y[token * kWidth + d], 1e-13);
      }
    }
    LimitedRun plain({.per_token = 2}, token_range(0, 32));
    EXPECT_NE(values_of(plain.forward()), y);
  }
}

TEST(Router, ChoosesWithoutAPlanWhereThereIsNoBackward) {
  const ops::RouterRule rule{.score = ops::RouterRule::Score::sigmoid, .renormalize = false};
  LimitedRun planned({.per_token = 1, .rule = rule, .gate = {.choice = GateRule::Choice::sinkhorn}},
                     token_range(0, 32)),
      plain({.per_token = 1, .rule = rule}, token_range(0, 32));
  EXPECT_NE(values_of(planned.forward()), values_of(plain.forward()));
  Ctx with = planned.ctx();
  with.keep = Keep::nothing;
  Saved none;
  EXPECT_EQ(values_of(planned.layer->multiply(planned.x_TD, {}, none, with)),
            values_of(LimitedRun({.per_token = 1, .rule = rule}, token_range(0, 32)).forward()));
}

/// Routing of some tokens of one x in f32.
struct SingleRouting {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};
SingleRouting route_in_f32(const Router::Options& options, std::int64_t begin, std::int64_t end,
                           Keep keep) {
  constexpr std::int64_t kWide = 300, kTokens = 67;
  Memory memory;
  Stream stream(1);
  const auto single = [&](const Shape& shape, std::uint64_t seed) {
    const Tensor made = memory.alloc(shape, DType::f32, MemoryTag::activations);
    ops::cast(uniform(shape, 1.0, seed, memory), made, stream);
    return made;
  };
  const auto weight = parameter("router", {kExperts, kWide});
  weight->value = single({kExperts, kWide}, 1);
  Router router(weight, options);
  if (options.bias) options.bias->value = single({kExperts}, 3);
  MicroBatch batch;
  batch.ids = memory.alloc({1, end - begin}, DType::i32, MemoryTag::data);
  Ctx ctx{.stream = stream, .memory = memory, .batch = batch};
  ctx.keep = keep;
  Saved saved;
  const Routing made = router.route(single({kTokens, kWide}, 2).slice(0, begin, end), saved, ctx);
  const auto experts = made.experts_TK.host<std::int32_t>();
  const auto weights = made.weights_TK.host<float>();
  return {{experts.begin(), experts.end()}, {weights.begin(), weights.end()}};
}

/// What a token chooses, and in which order, depends neither on whether there is a backward nor on
/// how many tokens are beside it: generation takes one at a time. Weights are the same but for
/// rounding, since a product of one row sums in another order than that of many.
TEST(Router, ChoosesTheSameInInferenceAsInTraining) {
  using Score = ops::RouterRule::Score;
  for (const ops::RouterRule& rule :
       {ops::RouterRule{}, ops::RouterRule{.score = Score::sigmoid, .scale = 2.5},
        ops::RouterRule{.renormalize = false}, ops::RouterRule{.groups = 3, .kept_groups = 2}}) {
    for (const bool has_bias : {false, true}) {
      Router::Options options{.per_token = 3, .rule = rule};
      if (has_bias) options.bias = parameter("bias", {kExperts});
      const SingleRouting trained = route_in_f32(options, 0, 67, Keep::all);
      for (const std::int64_t tokens : {1, 5, 67}) {
        for (std::int64_t begin = 0; begin < 67; begin += tokens) {
          const std::int64_t end = std::min<std::int64_t>(67, begin + tokens);
          const SingleRouting own = route_in_f32(options, begin, end, Keep::nothing);
          for (std::size_t i = 0; i < own.experts.size(); ++i) {
            const std::size_t at = static_cast<std::size_t>(begin * 3) + i;
            ASSERT_EQ(own.experts[i], trained.experts[at]) << tokens << " at a time";
            ASSERT_NEAR(own.weights[i], trained.weights[at], 1e-5) << tokens << " at a time";
          }
        }
      }
    }
  }
}

TEST(Router, RefusesShapesThatLie) {
  const auto made = [](const Shape& weight, std::int64_t per_token, const Shape& bias) {
    Router::Options options{.per_token = per_token};
    if (bias.dims() > 0) options.bias = parameter("bias", bias);
    return Router(parameter("router", weight), options);
  };
  EXPECT_THROW(made({4, 9}, 5, {}), Error);
  EXPECT_THROW(made({4, 9}, 0, {}), Error);
  EXPECT_THROW(made({36}, 1, {}), Error);
  EXPECT_THROW(made({4, 9}, 2, {5}), Error);
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
