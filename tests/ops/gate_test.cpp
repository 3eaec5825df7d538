#include "ops/gate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "ops/cosine.h"
#include "ops/embedding.h"
#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

using Score = RouterRule::Score;

constexpr std::int32_t kNone = kAbsentRow;

std::vector<std::int32_t> numbers_of(const Tensor& t) {
  return {t.host<std::int32_t>().begin(), t.host<std::int32_t>().end()};
}

Tensor choices(const Shape& shape, const std::vector<std::int32_t>& from) {
  return ids(from).view(shape);
}

/// K experts of each token by the highest of random logits.
struct Sample {
  Tensor logits, experts, scores;
};
Sample sample(std::int64_t T, std::int64_t E, std::int64_t K, DType dtype, std::uint64_t seed,
              double skew = 0.0) {
  Stream stream(1);
  Sample made{random_tensor({T, E}, dtype, seed), empty({T, K}, DType::i32), empty({T, K}, dtype)};
  for (std::int64_t i = 0; i < made.logits.count(); ++i) {
    put(made.logits, i, get(made.logits, i) - skew * static_cast<double>(i % E));
  }
  route(made.logits, {.renormalize = false}, {}, made.experts, made.scores, stream);
  return made;
}

// ---- Capacities ---------------------------------------------------------------------------------

/// The places that choices take, by the rules' own words: loc(t, j) as GShard counts it, ranks by
/// score, and so on, quadratic and without sorting.
bool is_kept(const std::vector<std::int32_t>& experts, const std::vector<double>& scores,
             const std::vector<std::uint64_t>& drawn, std::size_t K, std::size_t t, std::size_t j,
             Victims victims, std::int64_t capacity) {
  const std::size_t T = experts.size() / K;
  const auto best = [&](std::size_t token) {
    double most = scores[token * K];
    for (std::size_t k = 1; k < K; ++k) most = std::max(most, scores[token * K + k]);
    return most;
  };
  std::int64_t before = 0;
  for (std::size_t u = 0; u < T; ++u) {
    for (std::size_t k = 0; k < K; ++k) {
      if ((u == t && k == j) || experts[u * K + k] != experts[t * K + j]) continue;
      const std::size_t own = t * K + j, other = u * K + k;
      bool is_before = other < own;
      switch (victims) {
        case Victims::late_slots: is_before = k < j || (k == j && u < t); break;
        case Victims::late_tokens: break;
        case Victims::unsure:
          is_before = k < j || (k == j && (best(u) > best(t) || (best(u) == best(t) && u < t)));
          break;
        case Victims::low_scores:
          is_before = scores[other] > scores[own] || (scores[other] == scores[own] && other < own);
          break;
        case Victims::random: is_before = drawn[other] > drawn[own]; break;
      }
      before += is_before ? 1 : 0;
    }
  }
  return before < capacity;
}

constexpr Victims kVictims[] = {Victims::late_slots, Victims::late_tokens, Victims::unsure,
                                Victims::low_scores, Victims::random};

TEST(DropChoices, KeepsWhomEveryPolicyKeeps) {
  constexpr std::int64_t E = 8;
  for (const DType dtype : kFloats) {
    for (const std::int64_t K : {1, 2, 4}) {
      for (const std::int64_t T : {1, 7, 40}) {
        const Sample from = sample(T, E, K, dtype, 5, 0.3);
        std::vector<std::uint64_t> numbers(static_cast<std::size_t>(T));
        std::iota(numbers.begin(), numbers.end(), 100);
        std::vector<std::uint64_t> drawn;
        for (const std::uint64_t number : numbers) {
          for (std::int64_t k = 0; k < K; ++k) {
            drawn.push_back(random_u64(
                9, number * static_cast<std::uint64_t>(K) + static_cast<std::uint64_t>(k)));
          }
        }
        for (const Victims victims : kVictims) {
          for (const std::int64_t capacity : {1, 3, 11, 1000}) {
            Stream stream(1);
            const auto made = numbers_of(from.experts);
            const Tensor kept = choices({T, K}, made);
            drop_choices(from.scores, victims, capacity, {9, numbers}, E, kept, stream);
            const auto got = numbers_of(kept);
            for (std::size_t i = 0; i < got.size(); ++i) {
              const auto slots = static_cast<std::size_t>(K);
              const bool stays = is_kept(made, values(from.scores), drawn, slots, i / slots,
                                         i % slots, victims, capacity);
              ASSERT_EQ(got[i], stays ? made[i] : kNone) << "choice " << i;
            }
          }
        }
      }
    }
  }
}

TEST(DropChoices, GivesFirstChoicesTheirPlacesFirst) {
  Stream stream(1);
  const Tensor scores = empty({3, 2}, DType::f32);
  set(scores, {0.5, 0.4, 0.6, 0.3, 0.9, 0.1});
  const auto dropped = [&](Victims victims) {
    const Tensor experts = choices({3, 2}, {1, 0, 2, 0, 0, 1});
    drop_choices(scores, victims, 1, {}, 3, experts, stream);
    return numbers_of(experts);
  };
  EXPECT_EQ(dropped(Victims::late_slots),
            (std::vector<std::int32_t>{1, kNone, 2, kNone, 0, kNone}));
  EXPECT_EQ(dropped(Victims::late_tokens),
            (std::vector<std::int32_t>{1, 0, 2, kNone, kNone, kNone}));
  EXPECT_EQ(dropped(Victims::low_scores),
            (std::vector<std::int32_t>{1, kNone, 2, kNone, 0, kNone}));
}

TEST(DropChoices, LosesScoresThatAreNoNumbersFirst) {
  Stream stream(1);
  const Tensor scores = empty({3, 1}, DType::f32);
  scores.host<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  scores.host<float>()[1] = 0.1F;
  scores.host<float>()[2] = 0.2F;
  const Tensor experts = choices({3, 1}, {0, 0, 0});
  drop_choices(scores, Victims::low_scores, 2, {}, 2, experts, stream);
  EXPECT_EQ(numbers_of(experts), (std::vector<std::int32_t>{kNone, 0, 0}));
  EXPECT_THROW(drop_choices(scores, Victims::low_scores, 0, {}, 2, experts, stream), Error);
}

/// Whom the draw loses depends on the tokens' numbers, not on where they are.
TEST(DropChoices, DrawsByTheNumbersOfTokens) {
  Stream stream(1);
  constexpr std::int64_t T = 64;
  std::vector<std::uint64_t> numbers(T);
  std::iota(numbers.begin(), numbers.end(), 7);
  const auto lost = [&](std::uint64_t key, const std::vector<std::uint64_t>& of) {
    const Tensor scores = random_tensor({T, 1}, DType::f32, 1), experts = empty({T, 1}, DType::i32);
    std::ranges::fill(experts.host<std::int32_t>(), 0);
    drop_choices(scores, Victims::random, T / 2, {key, of}, 1, experts, stream);
    std::vector<std::uint64_t> found;
    for (std::size_t t = 0; t < T; ++t) {
      if (experts.host<std::int32_t>()[t] == kNone) found.push_back(of[t]);
    }
    std::ranges::sort(found);
    return found;
  };
  std::vector<std::uint64_t> reversed(numbers.rbegin(), numbers.rend());
  EXPECT_EQ(lost(1, numbers), lost(1, reversed));
  EXPECT_NE(lost(1, numbers), lost(2, numbers));
  EXPECT_NE(lost(1, numbers).front(), numbers[T / 2]);  // not simply the later half
}

// ---- Weights of choices that were made elsewhere ------------------------------------------------

TEST(WeighChoices, GivesWhatRouteGives) {
  Stream stream(1);
  for (const DType dtype : kFloats) {
    for (const RouterRule& rule :
         {RouterRule{}, RouterRule{.renormalize = false}, RouterRule{.score = Score::sigmoid},
          RouterRule{.score = Score::sigmoid, .renormalize = false, .scale = 2.5}}) {
      const Tensor logits = random_tensor({9, 6}, dtype, 3);
      const Tensor experts = empty({9, 3}, DType::i32), weights = empty({9, 3}, dtype),
                   again = empty({9, 3}, dtype);
      route(logits, rule, {}, experts, weights, stream);
      weigh_choices(logits, rule, experts, again, stream);
      expect_close(again, values(weights), 1e-7, 1e-15);
    }
  }
}

TEST(WeighChoices, DividesByThoseThatAreThere) {
  Stream stream(1);
  const Tensor logits = empty({2, 3}, DType::f64), weights = empty({2, 2}, DType::f64);
  set(logits, {std::log(1.0), std::log(2.0), std::log(5.0), 1, 2, 3});
  weigh_choices(logits, {}, choices({2, 2}, {2, kNone, kNone, kNone}), weights, stream);
  expect_close(weights, {1, 0, 0, 0}, 1e-15, 1e-15);
  weigh_choices(logits, {.renormalize = false}, choices({2, 2}, {2, kNone, kNone, 0}), weights,
                stream);
  EXPECT_NEAR(get(weights, 0), 5.0 / 8.0, 1e-15);
  EXPECT_EQ(get(weights, 1), 0.0);
}

/// Of choices some of which are absent, as a capacity leaves them.
TEST(WeighChoices, HasTheGradientOfRoute) {
  Stream stream(1);
  for (const RouterRule& rule :
       {RouterRule{}, RouterRule{.renormalize = false}, RouterRule{.score = Score::sigmoid},
        RouterRule{.score = Score::sigmoid, .renormalize = false, .scale = 2.5}}) {
    const Tensor logits = random_tensor({3, 4}, DType::f64, 7);
    const Tensor experts = choices({3, 2}, {2, kNone, kNone, kNone, 3, 0});
    const Tensor dweights = random_tensor({3, 2}, DType::f64, 8);
    const Tensor dlogits = empty({3, 4}, DType::f64);
    route_backward(dweights, logits, rule, experts, dlogits, stream);
    constexpr double kStep = 1e-6;
    const auto objective = [&] {
      const Tensor weights = empty({3, 2}, DType::f64);
      weigh_choices(logits, rule, experts, weights, stream);
      const auto w = values(weights), d = values(dweights);
      return std::inner_product(w.begin(), w.end(), d.begin(), 0.0);
    };
    for (std::int64_t i = 0; i < logits.count(); ++i) {
      const double here = get(logits, i);
      put(logits, i, here + kStep);
      const double above = objective();
      put(logits, i, here - kStep);
      const double below = objective();
      put(logits, i, here);
      EXPECT_NEAR(get(dlogits, i), (above - below) / (2 * kStep), 1e-8) << i;
    }
  }
}

/// Where the largest logit was not chosen (it was dropped, or noise or a bias chose), the others
/// are nothing beside it, but not beside each other.
TEST(WeighChoices, DividesThoseThatAreFarBelowTheLargest) {
  Stream stream(1);
  const double first = 1.0 / (1.0 + std::exp(-1.0));
  for (const DType dtype : kFloats) {
    const Tensor logits = empty({1, 3}, dtype), weights = empty({1, 2}, dtype),
                 bias = empty({3}, dtype), routed = empty({1, 2}, DType::i32);
    set(logits, {3000, 0, -1});
    weigh_choices(logits, {}, choices({1, 2}, {1, 2}), weights, stream);
    expect_close(weights, {first, 1 - first}, 1e-7, 1e-15);
    set(bias, {-5, 0.1, 0});
    route(logits, {}, bias, routed, weights, stream);
    EXPECT_EQ(numbers_of(routed), (std::vector<std::int32_t>{1, 2}));
    expect_close(weights, {first, 1 - first}, 1e-7, 1e-15);
    const Tensor dweights = empty({1, 2}, dtype), dlogits = empty({1, 3}, dtype);
    set(dweights, {1, 0});
    route_backward(dweights, logits, {}, routed, dlogits, stream);
    const auto weight_at = [](double above) { return 1.0 / (1.0 + std::exp(-1.0 - above)); };
    const double slope = (weight_at(1e-6) - weight_at(-1e-6)) / 2e-6;
    expect_close(dlogits, {0, slope, -slope}, 1e-6, 1e-9);
  }
}

// ---- Other ways to choose -----------------------------------------------------------------------

TEST(ChooseTokens, EveryExpertTakesItsBest) {
  constexpr std::int64_t T = 23, E = 5, kRoom = 6;
  for (const DType dtype : kFloats) {
    const Tensor logits = random_tensor({T, E}, dtype, 3), experts = empty({T, E}, DType::i32);
    Stream stream(1);
    choose_tokens(logits, kRoom, experts, stream);
    for (std::int64_t e = 0; e < E; ++e) {
      double least_taken = 2.0, best_left = -1.0;
      std::int64_t taken = 0;
      for (std::int64_t t = 0; t < T; ++t) {
        double sum = 0.0;
        for (std::int64_t i = 0; i < E; ++i) sum += std::exp(get(logits, t * E + i));
        const double p = std::exp(get(logits, t * E + e)) / sum;
        const std::int32_t slot = experts.host<std::int32_t>()[static_cast<std::size_t>(t * E + e)];
        ASSERT_TRUE(slot == kNone || slot == e);
        taken += slot == e ? 1 : 0;
        (slot == e ? least_taken : best_left) =
            slot == e ? std::min(least_taken, p) : std::max(best_left, p);
      }
      EXPECT_EQ(taken, kRoom);
      EXPECT_GE(least_taken, best_left);
    }
  }
}

TEST(ChooseTokens, OfEqualOnesTakesTheEarlierAndOfFewAll) {
  Stream stream(1);
  const Tensor logits = empty({3, 2}, DType::f32), experts = empty({3, 2}, DType::i32);
  set(logits, {0, 0, 0, 0, 0, 0});
  choose_tokens(logits, 2, experts, stream);
  EXPECT_EQ(numbers_of(experts), (std::vector<std::int32_t>{0, 1, 0, 1, kNone, kNone}));
  choose_tokens(logits, 9, experts, stream);
  EXPECT_EQ(numbers_of(experts), (std::vector<std::int32_t>{0, 1, 0, 1, 0, 1}));
  logits.host<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  choose_tokens(logits, 2, experts, stream);
  EXPECT_EQ(numbers_of(experts), (std::vector<std::int32_t>{kNone, kNone, 0, 1, 0, 1}));
}

double most_over_mean(const Tensor& experts, std::int64_t E) {
  std::vector<double> load(static_cast<std::size_t>(E), 0.0);
  for (const std::int32_t e : experts.host<std::int32_t>()) load[static_cast<std::size_t>(e)] += 1;
  return *std::ranges::max_element(load) * static_cast<double>(E) /
         static_cast<double>(experts.count());
}

/// Experts that most tokens prefer: without a plan one of them gets several times its share.
TEST(ChooseByPlan, BalancesSkewedLogits) {
  Stream stream(1);
  for (const double gain : {1.0, 2.0}) {
    for (const std::int64_t T : {512, 4096}) {
      for (const std::uint64_t seed : {1, 2, 3}) {
        constexpr std::int64_t E = 8;
        const Tensor logits = random_tensor({T, E}, DType::f32, seed);
        for (std::int64_t i = 0; i < logits.count(); ++i) {
          put(logits, i,
              get(logits, i) + 1.5 * random_normal(seed, static_cast<std::uint64_t>(i % E)));
        }
        const Tensor experts = empty({T, 1}, DType::i32), weights = empty({T, 1}, DType::f32);
        choose_by_plan(logits, {.gain = gain, .passes = 3, .tolerance = 0.0}, experts, stream);
        EXPECT_LE(most_over_mean(experts, E), 1.2) << "gain " << gain << ", " << T << " tokens";
        route(logits, {}, {}, experts, weights, stream);
        EXPECT_GT(most_over_mean(experts, E), 1.5);
      }
    }
  }
}

TEST(ChooseByPlan, ChoosesDifferentExpertsWhateverTheLogits) {
  Stream stream(1);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  const Tensor logits = empty({5, 4}, DType::f32), experts = empty({5, 2}, DType::i32);
  const std::vector<float> bad = {kNan, kNan, kNan,  kNan,  1,    kNan,  2,    0,     kInf, kInf,
                                  0,    1,    -kInf, -kInf, kNan, -kInf, 5000, -5000, 3,    1};
  std::ranges::copy(bad, logits.host<float>().begin());
  choose_by_plan(logits, {}, experts, stream);
  for (std::size_t t = 0; t < 5; ++t) {
    const auto chosen = experts.host<std::int32_t>().subspan(2 * t, 2);
    EXPECT_NE(chosen[0], chosen[1]);
    for (const std::int32_t e : chosen) EXPECT_TRUE(e >= 0 && e < 4) << e;
  }
  EXPECT_THROW(choose_by_plan(logits, {}, empty({5, 5}, DType::i32), stream), Error);
  EXPECT_THROW(choose_by_plan(logits, {}, empty({4, 2}, DType::i32), stream), Error);
}

TEST(ChooseByPlan, EndsWhenFactorsStandStill) {
  Stream stream(1);
  const Tensor logits = random_tensor({600, 8}, DType::f64, 4);
  const auto chosen = [&](int passes, double tolerance) {
    const Tensor experts = empty({600, 1}, DType::i32);
    choose_by_plan(logits, {.gain = 2.0, .passes = passes, .tolerance = tolerance}, experts,
                   stream);
    return numbers_of(experts);
  };
  EXPECT_EQ(chosen(100000, 1e-9), chosen(300, 0.0));
  EXPECT_EQ(chosen(100000, 10.0), chosen(1, 0.0));
}

// ---- Cosines ------------------------------------------------------------------------------------

TEST(CosineLogits, AreCosinesTimesATemperatureThatIsLimited) {
  Stream stream(1);
  const Tensor u = empty({2, 2}, DType::f64), v = empty({2, 2}, DType::f64),
               warmth = empty({1}, DType::f64), logits = empty({2, 2}, DType::f64);
  set(u, {3, 0, 0, 0});
  set(v, {1, 1, 0, -2});
  set(warmth, {0});
  cosine_logits(u, v, warmth, logits, stream);
  expect_close(logits, {std::sqrt(2.0), 0, 0, 0}, 1e-15, 1e-15);  // twice the cosine of 45 degrees
  set(warmth, {10});
  cosine_logits(u, v, warmth, logits, stream);
  EXPECT_NEAR(get(logits, 0), 100 / std::sqrt(2.0), 1e-12);
}

TEST(CosineLogits, HaveTheGradientsThatDifferencesShow) {
  constexpr std::int64_t T = 4, E = 3, P = 5;
  for (const double heat : {0.3, 9.0}) {
    const Tensor u = random_tensor({T, P}, DType::f64, 1), v = random_tensor({E, P}, DType::f64, 2),
                 warmth = empty({1}, DType::f64), d = random_tensor({T, E}, DType::f64, 3);
    set(warmth, {heat});
    Stream stream(1);
    const Tensor du = empty({T, P}, DType::f64), dv = empty({E, P}, DType::f64),
                 dwarmth = empty({1}, DType::f64);
    set(dv, std::vector<double>(E * P, 0.0));
    set(dwarmth, {0});
    cosine_logits_backward_input(d, u, v, warmth, du, stream);
    cosine_logits_backward_weight(d, u, v, warmth, dv, dwarmth, stream);
    const auto objective = [&] {
      const Tensor logits = empty({T, E}, DType::f64);
      cosine_logits(u, v, warmth, logits, stream);
      const auto l = values(logits), g = values(d);
      return std::inner_product(l.begin(), l.end(), g.begin(), 0.0);
    };
    for (const auto& [at, gradient] :
         {std::pair(u, du), std::pair(v, dv), std::pair(warmth, dwarmth)}) {
      for (std::int64_t i = 0; i < at.count(); ++i) {
        constexpr double kStep = 1e-6;
        const double here = get(at, i);
        put(at, i, here + kStep);
        const double above = objective();
        put(at, i, here - kStep);
        const double below = objective();
        put(at, i, here);
        EXPECT_NEAR(get(gradient, i), (above - below) / (2 * kStep), 1e-6);
      }
    }
    if (heat > 5.0) {
      EXPECT_EQ(get(dwarmth, 0), 0.0);
    }
  }
}

// ---- Noise --------------------------------------------------------------------------------------

TEST(AddNoise, IsOfTheTokenAndItsExpert) {
  Stream stream(1);
  constexpr std::int64_t E = 4;
  for (const Noise noise : {Noise::gaussian, Noise::gumbel}) {
    const std::vector<std::uint64_t> numbers = {5, 6, 7, 8};
    const Tensor all = empty({4, E}, DType::f64), one = empty({1, E}, DType::f64);
    std::ranges::fill(all.host<double>(), 0.0);
    std::ranges::fill(one.host<double>(), 0.0);
    add_noise(all, noise, 0.5, {3, numbers}, stream);
    add_noise(one, noise, 0.5, {3, std::span(numbers).subspan(2, 1)}, stream);
    EXPECT_EQ(values(one), values(all.slice(0, 2, 3)));
    for (std::int64_t i = 1; i < all.count(); ++i) EXPECT_NE(get(all, i), get(all, 0));
    add_noise(one, noise, 0.5, {4, std::span(numbers).subspan(2, 1)}, stream);
    EXPECT_NE(get(one, 0), 2 * get(all, 2 * E));  // another key draws others
  }
}

TEST(AddNoise, HasTheMeanAndVarianceOfItsKind) {
  Stream stream(1);
  constexpr std::int64_t T = 20000, E = 2;
  std::vector<std::uint64_t> numbers(T);
  std::iota(numbers.begin(), numbers.end(), 0);
  for (const auto& [noise, mean, variance] :
       {std::tuple(Noise::gaussian, 0.0, 1.0), {Noise::gumbel, 0.5772, 1.6449}}) {
    const Tensor logits = empty({T, E}, DType::f64);
    std::ranges::fill(logits.host<double>(), 0.0);
    add_noise(logits, noise, 1.0, {3, numbers}, stream);
    double sum = 0.0, squares = 0.0;
    for (const double x : values(logits)) {
      sum += x / (T * E);
      squares += x * x / (T * E);
    }
    EXPECT_NEAR(sum, mean, 0.03);
    EXPECT_NEAR(squares - sum * sum, variance, 0.08);
  }
}

// ---- Counts -------------------------------------------------------------------------------------

TEST(AddLoad, AddsChoicesAndWhatWasDropped) {
  Stream stream(1);
  const Tensor made = choices({3, 2}, {0, 1, 1, 2, 1, 0});
  const Tensor kept = choices({3, 2}, {0, 1, kNone, 2, kNone, kNone});
  const Tensor load = empty({5}, DType::f64);
  set(load, {10, 0, 0, 0, 7});
  add_load(made, kept, load, stream);
  EXPECT_EQ(values(load), (std::vector<double>{12, 3, 1, 3, 8}));
}

/// Where bf16 has 256 steps between powers of two, and f32 ends counting at 16.8 million.
TEST(AddLoad, CountsBeyondWhatFloatsCount) {
  Stream stream(1);
  const Tensor load = empty({3}, DType::f64), one = choices({1, 1}, {0});
  for (const double before : {40840.0, 16777216.0, 4503599627370496.0}) {
    set(load, {before, 0, 0});
    add_load(one, one, load, stream);
    EXPECT_EQ(get(load, 0), before + 1);
  }
}

TEST(CountsOfLoad, AreThoseOfOneTokenInTheMean) {
  Stream stream(1);
  for (const DType dtype : kFloats) {
    const Tensor load = empty({6}, DType::f64), counts = empty({5}, dtype);
    set(load, {0x1p40, 0, 0x1p41, 0x1p40, 1, 2});
    counts_of_load(load, 2, counts, stream);
    EXPECT_EQ(values(counts), (std::vector<double>{0.5, 0, 1, 0.5, 1}));
    set(load, {0, 0, 0, 0, 0, 0});
    counts_of_load(load, 2, counts, stream);
    EXPECT_EQ(values(counts), (std::vector<double>{0, 0, 0, 0, 1}));
    EXPECT_THROW(counts_of_load(load, 2, empty({6}, dtype), stream), Error);
  }
}

TEST(CountBySequence, CountsChoicesOfEachAndItsTokens) {
  Stream stream(1);
  const Tensor experts = choices({4, 2}, {0, 1, 1, kNone, 1, 0, 2, 1});
  const Tensor counts = empty({2, 4}, DType::f32);
  count_by_sequence(experts, ids({0, 1, 0, 1}), 2, counts, stream);
  EXPECT_EQ(values(counts), (std::vector<double>{2, 2, 0, 2, 0, 2, 1, 2}));
  count_by_sequence(experts, ids({0, 1, 0, 1}), 1, counts, stream);
  EXPECT_EQ(values(counts), (std::vector<double>{1, 1, 0, 2, 0, 1, 1, 2}));
}

TEST(PickNumbers, LeavesAbsentWhatIsAbsent) {
  Stream stream(1);
  const Tensor picked = choices({2, 2}, {9, 9, 9, 9});
  pick_numbers(ids({5, kNone, 7}), choices({2, 2}, {2, kNone, 1, 0}), picked, stream);
  EXPECT_EQ(numbers_of(picked), (std::vector<std::int32_t>{7, kNone, kNone, 5}));
  EXPECT_THROW(pick_numbers(ids({5}), choices({2, 2}, {0, 0, 1, 0}), picked, stream), Error);
}

TEST(BalanceBias, MovesAgainstTheLoadByTheRate) {
  Stream stream(1);
  const Tensor load = empty({4}, DType::f64), clip = empty({1}, DType::f32);
  set(load, {40841, 40840, 40839, 40840});
  set(clip, {1});
  const Tensor bias = empty({4}, DType::f32), part = empty({2}, DType::f32);
  set(bias, {0.5, 0, 0, -1});
  set(part, {0, 0});
  balance_bias(load, 0.25, clip, 0, bias, stream);
  EXPECT_EQ(values(bias), (std::vector<double>{0.25, 0, 0.25, -1}));
  balance_bias(load, 0.25, clip, 2, part, stream);
  EXPECT_EQ(values(part), (std::vector<double>{0.25, 0}));
  EXPECT_THROW(balance_bias(load, 0.25, clip, 3, part, stream), Error);
  clip.host<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  balance_bias(load, 0.25, clip, 0, bias, stream);
  EXPECT_EQ(values(bias), (std::vector<double>{0.25, 0, 0.25, -1}));
}

}  // namespace
}  // namespace heddle::ops
