// Losses of routers in double precision: against what their formulas say, and however tokens are
// divided over ranks and micro-batches.

#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include "comm/threads/thread_world.h"
#include "nn/experts/router.h"
#include "nn/layer_testing.h"

namespace heddle {
namespace {

constexpr std::int64_t kWidth = 7, kExperts = 5, kPerToken = 2, kSequences = 3, kLength = 4,
                       kTokens = kSequences * kLength;
constexpr double kScale = 0.37, kBalance = 0.3, kZ = 0.1;

constexpr Balance kBalances[] = {Balance::choices, Balance::first_choices, Balance::shares,
                                 Balance::sequence, Balance::global};
/// Of the step before, by expert, then dropped choices and lost tokens.
const std::vector<double> kLastLoad = {7000, 1000, 30000, 500, 1500, 9, 3};

Router::Options options_of(Balance balance, ops::RouterRule::Score score, double z = kZ) {
  return {.per_token = kPerToken,
          .rule = {.score = score},
          .loss = {.balance = kBalance, .z = z},
          .gate = {.balance = balance}};
}

std::vector<std::int64_t> tokens_between(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(end - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

struct Gradients {
  std::vector<double> dx, dweight;
};

/// A router on some tokens of one micro-batch.
class LossRun {
 public:
  explicit LossRun(const Router::Options& options)
      : weight_(parameter("router", {kExperts, kWidth})), router_(weight_, options) {
    weight_->value = uniform({kExperts, kWidth}, 1.0, 1, memory_);
    weight_->grad = memory_.zeros({kExperts, kWidth}, DType::f64, MemoryTag::gradients);
    x_ = uniform({kTokens, kWidth}, 1.5, 2, memory_);
    load_ = memory_.zeros({1, kExperts + 2}, DType::f64, MemoryTag::communication);
  }

  /// What the losses alone add, for these tokens; sequences of the whole micro-batch are of
  /// kLength tokens.
  Gradients gradients(const std::vector<std::int64_t>& tokens, double scale = kScale) {
    MicroBatch batch;
    batch.ids =
        memory_.alloc({1, static_cast<std::int64_t>(tokens.size())}, DType::i32, MemoryTag::data);
    auto places = std::make_shared<TokenPlaces>();
    places->of_whole = tokens;
    places->sequences = kSequences;
    places->seq_len = kLength;
    batch.places = places;
    const Tensor x = memory_.alloc({batch.tokens(), kWidth}, DType::f64, MemoryTag::activations);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::ranges::copy(x_.select(0, tokens[i]).host<double>(),
                        x.select(0, static_cast<std::int64_t>(i)).host<double>().begin());
    }
    const Tensor last = memory_.alloc({1, kExperts + 2}, DType::f64, MemoryTag::communication);
    std::ranges::copy(kLastLoad, last.host<double>().begin());
    Ctx ctx{.stream = stream_,
            .memory = memory_,
            .batch = batch,
            .router_scale = scale,
            .expert_load = load_,
            .last_load = last};
    Saved saved;
    const Routing routing = router_.route(x, saved, ctx);
    const Tensor none =
        memory_.zeros(routing.weights_TK.shape(), DType::f64, MemoryTag::activations);
    weight_->retire_grad();
    const Tensor dx = router_.backward_input(none, {}, saved, ctx);
    router_.backward_weight(x, saved, ctx);
    EXPECT_TRUE(saved.empty());
    return {values_of(dx), values_of(weight_->grad)};
  }

  /// The losses of all tokens by their formulas; choices are those of the logits as they are.
  double value(const Router::Options& options) const {
    std::vector<std::vector<double>> logits(kTokens);
    std::vector<std::vector<std::size_t>> chosen(kTokens);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      auto& own = logits[static_cast<std::size_t>(t)];
      for (std::int64_t e = 0; e < kExperts; ++e) {
        double logit = 0.0;
        for (std::int64_t i = 0; i < kWidth; ++i) {
          logit +=
              x_.data<double>()[t * kWidth + i] * weight_->value.data<double>()[e * kWidth + i];
        }
        own.push_back(logit);
      }
      std::vector<std::size_t> order(kExperts);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::sort(order, [&](auto a, auto b) { return own[a] > own[b]; });
      order.resize(kPerToken);
      chosen[static_cast<std::size_t>(t)] = order;
    }
    double sum = 0.0;
    for (std::size_t t = 0; t < kTokens; ++t) {
      const std::vector<double> f = shares(options.gate.balance, chosen, t);
      std::vector<double> p;
      double all = 0.0, exponentials = 0.0;
      for (const double l : logits[t]) {
        exponentials += std::exp(l);
        p.push_back(options.rule.score == ops::RouterRule::Score::softmax
                        ? std::exp(l)
                        : 1.0 / (1.0 + std::exp(-l)));
        all += p.back();
      }
      for (std::size_t e = 0; e < p.size(); ++e) {
        sum += options.loss.balance * kExperts * f[e] * p[e] / all;
      }
      sum += options.loss.z * std::log(exponentials) * std::log(exponentials);
    }
    return kScale * sum;
  }

  const Tensor& x() const { return x_; }
  const Parameter& weight() const { return *weight_; }

 private:
  /// f_e of the table of published losses, for token t.
  static std::vector<double> shares(Balance balance,
                                    const std::vector<std::vector<std::size_t>>& chosen,
                                    std::size_t t) {
    std::vector<double> f(kExperts, 0.0);
    if (balance == Balance::global) {
      for (std::size_t e = 0; e < f.size(); ++e) f[e] = kLastLoad[e] / 40000.0;
      return f;
    }
    double tokens = 0.0;
    for (std::size_t u = 0; u < chosen.size(); ++u) {
      if (balance == Balance::sequence && u / kLength != t / kLength) continue;
      tokens += 1.0;
      const std::size_t slots = balance == Balance::first_choices ? 1 : kPerToken;
      for (std::size_t k = 0; k < slots; ++k) f[chosen[u][k]] += 1.0;
    }
    const bool by_choice = balance == Balance::shares || balance == Balance::sequence;
    for (double& share : f) share /= tokens * (by_choice ? kPerToken : 1.0);
    return f;
  }

  Memory memory_;
  Stream stream_{1};
  std::shared_ptr<Parameter> weight_;
  Router router_;
  Tensor x_, load_;  // what the step has counted so far
};

TEST(RouterLosses, AreTheSlopesOfTheirFormulas) {
  for (const Balance balance : kBalances) {
    for (const auto score : {ops::RouterRule::Score::softmax, ops::RouterRule::Score::sigmoid}) {
      const Router::Options options = options_of(balance, score);
      LossRun run(options);
      const Gradients got = run.gradients(tokens_between(0, kTokens));
      const auto value = [&] { return run.value(options); };
      expect_gradient(run.x(), got.dx, value, "x");
      expect_gradient(run.weight().value, got.dweight, value, "the router's rows");
    }
  }
}

/// Interleaved, uneven, and a rank without any token: as cp, tp and padding share them.
TEST(RouterLosses, OfTokensThatRanksShareAreThoseOfOneRank) {
  const std::vector<std::vector<std::vector<std::int64_t>>> divisions = {
      {tokens_between(0, 6), tokens_between(6, 12)},
      {tokens_between(0, 1), tokens_between(1, 12)},
      {{0, 2, 4, 6, 8, 10}, {1, 3, 5, 7, 9, 11}},
      {{0, 11, 5}, {}, {1, 2, 3, 4, 6, 7, 8, 9, 10}}};
  for (const Balance balance : kBalances) {
    const Router::Options options = options_of(balance, ops::RouterRule::Score::softmax);
    const Gradients whole = LossRun(options).gradients(tokens_between(0, kTokens));
    for (const auto& division : divisions) {
      std::mutex mutex;
      std::vector<double> dx(whole.dx.size()), dweight(whole.dweight.size(), 0.0);
      run_ranks(static_cast<int>(division.size()), [&](World& world) {
        const auto& own = division[static_cast<std::size_t>(world.rank())];
        Router::Options shared = options;
        shared.sharers = {&world.all()};
        const Gradients part = LossRun(shared).gradients(own);
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < own.size(); ++i) {
          std::copy_n(part.dx.begin() + static_cast<std::ptrdiff_t>(i) * kWidth, kWidth,
                      dx.begin() + own[i] * kWidth);
        }
        for (std::size_t i = 0; i < dweight.size(); ++i) dweight[i] += part.dweight[i];
      });
      for (std::size_t i = 0; i < dx.size(); ++i) ASSERT_NEAR(dx[i], whole.dx[i], 1e-12);
      for (std::size_t i = 0; i < dweight.size(); ++i) {
        ASSERT_NEAR(dweight[i], whole.dweight[i], 1e-12);
      }
    }
  }
}

/// Those that are defined by sequences or by the step do not see micro-batches.
TEST(RouterLosses, OfSequencesAndOfTheStepDoNotDependOnMicroBatches) {
  for (const Balance balance : {Balance::sequence, Balance::global}) {
    const Router::Options options = options_of(balance, ops::RouterRule::Score::sigmoid);
    const Gradients whole = LossRun(options).gradients(tokens_between(0, kTokens));
    std::vector<double> dweight(whole.dweight.size(), 0.0);
    for (std::int64_t s = 0; s < kSequences; ++s) {
      const Gradients part =
          LossRun(options).gradients(tokens_between(s * kLength, (s + 1) * kLength));
      for (std::size_t i = 0; i < part.dx.size(); ++i) {
        ASSERT_NEAR(part.dx[i], whole.dx[static_cast<std::size_t>(s * kLength * kWidth) + i],
                    1e-13);
      }
      for (std::size_t i = 0; i < dweight.size(); ++i) dweight[i] += part.dweight[i];
    }
    for (std::size_t i = 0; i < dweight.size(); ++i) {
      ASSERT_NEAR(dweight[i], whole.dweight[i], 1e-13);
    }
  }
}

/// A micro-batch's shares are of its own choices over its own tokens: the one before it does not
/// count in either.
TEST(RouterLosses, OfAMicroBatchDoNotContainTheOneBefore) {
  for (const Balance balance : kBalances) {
    const Router::Options options = options_of(balance, ops::RouterRule::Score::softmax);
    LossRun run(options);
    run.gradients(tokens_between(0, 8));
    const Gradients second = run.gradients(tokens_between(8, 12));
    const Gradients alone = LossRun(options).gradients(tokens_between(8, 12));
    EXPECT_EQ(second.dx, alone.dx);
    EXPECT_EQ(second.dweight, alone.dweight);
  }
}

/// They carry the factor of the main loss.
TEST(RouterLosses, GrowWithTheFactorOfTheMainLoss) {
  for (const Balance balance : kBalances) {
    LossRun run(options_of(balance, ops::RouterRule::Score::softmax));
    const Gradients once = run.gradients(tokens_between(0, kTokens), 0.25),
                    fourfold = run.gradients(tokens_between(0, kTokens), 1.0);
    for (std::size_t i = 0; i < once.dx.size(); ++i) {
      EXPECT_NEAR(fourfold.dx[i], 4.0 * once.dx[i], 1e-14);
    }
  }
}

/// transformers' loss is as many times Megatron-LM's as a token has experts.
TEST(RouterLosses, DifferByWhatTheyAreAtBalance) {
  LossRun hf(options_of(Balance::choices, ops::RouterRule::Score::softmax, 0.0)),
      megatron(options_of(Balance::shares, ops::RouterRule::Score::softmax, 0.0));
  const Gradients a = hf.gradients(tokens_between(0, kTokens)),
                  b = megatron.gradients(tokens_between(0, kTokens));
  for (std::size_t i = 0; i < a.dx.size(); ++i) EXPECT_NEAR(a.dx[i], kPerToken * b.dx[i], 1e-14);
}

}  // namespace
}  // namespace heddle
