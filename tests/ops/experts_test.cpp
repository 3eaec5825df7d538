#include "ops/experts.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

using Score = RouterRule::Score;

std::vector<std::int32_t> ints(const Tensor& t) {
  return {t.host<std::int32_t>().begin(), t.host<std::int32_t>().end()};
}

Tensor int_tensor(const Shape& shape, const std::vector<std::int32_t>& from) {
  return ids(from).view(shape);
}

struct Routed {
  Tensor experts, weights;
};

Routed routed(const Tensor& logits, const RouterRule& rule, std::int64_t K,
              const Tensor& bias = {}) {
  Stream stream(1);
  const Routed made{empty({logits.size(0), K}, DType::i32),
                    empty({logits.size(0), K}, logits.dtype())};
  route(logits, rule, bias, made.experts, made.weights, stream);
  return made;
}

std::vector<double> scores_of(const std::vector<double>& logits, Score score) {
  std::vector<double> s;
  double sum = 0.0;
  for (const double l : logits) {
    s.push_back(score == Score::softmax ? std::exp(l) : 1.0 / (1.0 + std::exp(-l)));
    sum += s.back();
  }
  if (score == Score::softmax) {
    for (double& value : s) value /= sum;
  }
  return s;
}

/// What route gives for a token, written down directly.
std::pair<std::vector<std::int32_t>, std::vector<double>> expected(
    const std::vector<double>& logits, const RouterRule& rule, std::size_t K,
    const std::vector<double>& bias) {
  const std::vector<double> s = scores_of(logits, rule.score);
  std::vector<double> key = s;
  for (std::size_t e = 0; e < bias.size(); ++e) key[e] += bias[e];
  const auto G = static_cast<std::size_t>(rule.groups), size = s.size() / G;
  std::vector<std::pair<double, std::size_t>> groups;
  for (std::size_t g = 0; g < G; ++g) {
    std::vector<double> of(key.begin() + static_cast<std::ptrdiff_t>(g * size),
                           key.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::ranges::sort(of, std::greater());
    groups.emplace_back(-(bias.empty() ? of[0] : of[0] + of[1]), g);
  }
  std::ranges::sort(groups);
  std::vector<std::pair<double, std::int32_t>> order;
  for (std::size_t g = 0; g < static_cast<std::size_t>(rule.kept_groups); ++g) {
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t e = groups[g].second * size + i;
      order.emplace_back(-key[e], static_cast<std::int32_t>(e));
    }
  }
  std::ranges::sort(order);
  std::vector<std::int32_t> chosen;
  std::vector<double> weights;
  double sum = 0.0;
  for (std::size_t k = 0; k < K; ++k) {
    chosen.push_back(order[k].second);
    weights.push_back(s[static_cast<std::size_t>(chosen[k])]);
    sum += weights[k];
  }
  for (double& w : weights) w *= rule.scale / (rule.renormalize ? sum : 1.0);
  return {chosen, weights};
}

const RouterRule kRules[] = {{},
                             {.renormalize = false},
                             {.score = Score::sigmoid},
                             {.score = Score::sigmoid, .renormalize = false, .scale = 2.5},
                             {.score = Score::sigmoid, .scale = 2.5, .groups = 4, .kept_groups = 2},
                             {.renormalize = true, .scale = 0.5, .groups = 2, .kept_groups = 1}};

TEST(Route, ChoosesAndWeighsByEveryRule) {
  constexpr std::int64_t T = 37, E = 8;
  for (const DType dtype : kFloats) {
    for (const RouterRule& rule : kRules) {
      for (const std::int64_t K : {1, 2, 4}) {
        for (const bool has_bias : {false, true}) {
          const Tensor logits = random_tensor({T, E}, dtype, 3);
          const Tensor bias = has_bias ? random_tensor({E}, dtype, 4, 0.3) : Tensor();
          const auto [experts, weights] = routed(logits, rule, K, bias);
          for (std::int64_t t = 0; t < T; ++t) {
            const auto [chosen, weighed] =
                expected(values(logits.slice(0, t, t + 1)), rule, static_cast<std::size_t>(K),
                         has_bias ? values(bias) : std::vector<double>{});
            ASSERT_EQ(ints(experts.slice(0, t, t + 1)), chosen) << "token " << t;
            expect_close(weights.slice(0, t, t + 1), weighed, 1e-6, 1e-14);
          }
        }
      }
    }
  }
}

TEST(Route, DoesNotDependOnThreads) {
  const Tensor logits = random_tensor({3000, 8}, DType::f32, 3);
  on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
    const Tensor experts = empty({3000, 2}, DType::i32), weights = empty({3000, 2}, DType::f32);
    route(logits, {}, {}, experts, weights, stream);
    return {experts, weights};
  });
}

TEST(Route, OfEqualScoresTakesTheLowerIndex) {
  const Tensor logits = empty({2, 6}, DType::f32);
  set(logits, {1, 2, 2, 0, 2, 1, /**/ 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(ints(routed(logits, {}, 4).experts),
            (std::vector<std::int32_t>{1, 2, 4, 0, 0, 1, 2, 3}));
  const RouterRule grouped{.groups = 3, .kept_groups = 2};
  EXPECT_EQ(ints(routed(logits, grouped, 3).experts),
            (std::vector<std::int32_t>{1, 2, 0, 0, 1, 2}));
}

/// Scores are compared as they are: in bf16, probabilities so near each other would be equal, and
/// the lower index would win.
TEST(Route, TellsApartWhatBf16WouldNot) {
  const Tensor logits = empty({2, 4}, DType::f32);
  set(logits, {1, 1.0001, 1.0002, 0, /**/ -3, 5, 5.001, 5.0005});
  for (const RouterRule& rule : kRules) {
    if (rule.groups > 1) continue;
    const auto [experts, weights] = routed(logits, rule, 2);
    EXPECT_EQ(ints(experts), (std::vector<std::int32_t>{2, 1, 2, 3}));
    EXPECT_GT(get(weights, 0), get(weights, 1));
  }
}

TEST(Route, LogitsThatAreNoNumbersStillChooseDifferentExperts) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  const Tensor logits = empty({4, 4}, DType::f32);
  const std::vector<float> bad = {kNan, kNan, kNan, kNan, 1,     kNan,  2,    0,
                                  kInf, kInf, 0,    1,    -kInf, -kInf, kNan, -kInf};
  std::ranges::copy(bad, logits.host<float>().begin());
  for (const RouterRule& rule : kRules) {
    if (rule.groups > 2) continue;
    const auto [experts, weights] = routed(logits, rule, 2);
    for (std::int64_t t = 0; t < 4; ++t) {
      const auto chosen = ints(experts.slice(0, t, t + 1));
      EXPECT_NE(chosen[0], chosen[1]);
      for (const std::int32_t e : chosen) EXPECT_TRUE(e >= 0 && e < 4) << e;
    }
  }
}

TEST(Route, RefusesMoreChoicesThanThereAre) {
  Stream stream(1);
  const Tensor logits = random_tensor({2, 4}, DType::f32, 1);
  const Tensor experts = empty({2, 3}, DType::i32), weights = empty({2, 3}, DType::f32);
  EXPECT_THROW(route(logits, {.groups = 2, .kept_groups = 1}, {}, experts, weights, stream), Error);
  EXPECT_THROW(route(logits, {.groups = 3}, {}, experts, weights, stream), Error);
  EXPECT_THROW(route(random_tensor({2, 2}, DType::f32, 1), {}, {}, experts, weights, stream),
               Error);
}

/// Central differences of `objective` at every element.
void expect_slopes(const Tensor& at, const Tensor& gradient,
                   const std::function<double()>& objective) {
  constexpr double kStep = 1e-6;
  for (std::int64_t i = 0; i < at.count(); ++i) {
    const double here = get(at, i);
    put(at, i, here + kStep);
    const double above = objective();
    put(at, i, here - kStep);
    const double below = objective();
    put(at, i, here);
    ASSERT_NEAR(get(gradient, i), (above - below) / (2 * kStep), 1e-7) << "element " << i;
  }
}

TEST(RouteBackward, IsTheSlopeOfTheWeights) {
  constexpr std::int64_t T = 5, E = 8, K = 3;
  for (const RouterRule& rule : kRules) {
    const Tensor logits = random_tensor({T, E}, DType::f64, 7);
    const Tensor dweights = random_tensor({T, K}, DType::f64, 8);
    const Tensor experts = routed(logits, rule, K).experts;
    const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
      const Tensor dlogits = empty({T, E}, DType::f64);
      route_backward(dweights, logits, rule, experts, dlogits, stream);
      return {dlogits};
    });
    expect_slopes(logits, got[0], [&] {
      const auto weights = values(routed(logits, rule, K).weights), d = values(dweights);
      return std::inner_product(d.begin(), d.end(), weights.begin(), 0.0);
    });
  }
}

TEST(RouteBackward, OfRenormalizedWeightsIsZeroForThoseThatWereNotChosen) {
  Stream stream(1);
  const Tensor logits = random_tensor({9, 8}, DType::f32, 7);
  const Tensor dweights = random_tensor({9, 2}, DType::f32, 8), dlogits = empty({9, 8}, DType::f32);
  const Tensor experts = routed(logits, {}, 2).experts;
  route_backward(dweights, logits, {}, experts, dlogits, stream);
  for (std::int64_t t = 0; t < 9; ++t) {
    const auto chosen = ints(experts.slice(0, t, t + 1));
    for (std::int32_t e = 0; e < 8; ++e) {
      if (std::ranges::find(chosen, e) != chosen.end()) continue;
      EXPECT_EQ(get(dlogits, t * 8 + e), 0.0);
    }
  }
}

TEST(RouterLoss, GradientIsAddedAndIsItsSlope) {
  constexpr std::int64_t T = 6, E = 4, K = 2;
  for (const Score score : {Score::softmax, Score::sigmoid}) {
    const RouterRule rule{.score = score};
    for (const RouterLoss& loss :
         {RouterLoss{.balance = 0.3}, RouterLoss{.z = 0.2}, RouterLoss{.balance = 0.1, .z = 0.4}}) {
      const Tensor logits = random_tensor({T, E}, DType::f64, 9);
      const Tensor counts = empty({E + 1}, DType::f64);
      Stream stream(1);
      count_choices(routed(logits, rule, K).experts, counts, stream);
      EXPECT_EQ(get(counts, E), T);
      EXPECT_EQ(get(counts, 0) + get(counts, 1) + get(counts, 2) + get(counts, 3), T * K);
      const Tensor before = random_tensor({T, E}, DType::f64, 10);
      const auto got = on_any_threads([&](Stream& on) -> std::vector<Tensor> {
        const Tensor dlogits = copy_of(before);
        router_loss_backward(logits, rule, counts, loss, dlogits, on);
        return {dlogits};
      });
      const Tensor own = copy_of(got[0]);
      for (std::int64_t i = 0; i < own.count(); ++i) put(own, i, get(own, i) - get(before, i));
      expect_slopes(logits, own, [&] {
        double sum = 0.0;
        for (std::int64_t t = 0; t < T; ++t) {
          const auto l = values(logits.slice(0, t, t + 1));
          auto p = scores_of(l, score);
          const double all = std::accumulate(p.begin(), p.end(), 0.0);
          double exponentials = 0.0;
          for (std::size_t e = 0; e < p.size(); ++e) {
            sum += loss.balance * E * get(counts, static_cast<std::int64_t>(e)) / T * p[e] / all;
            exponentials += std::exp(l[e]);
          }
          sum += loss.z * std::pow(std::log(exponentials), 2);
        }
        return sum;
      });
    }
  }
}

TEST(CountChoices, CountsManyExactly) {
  // In bf16, 40,840 would read as 40,704.
  std::vector<std::int32_t> chosen(40'840, 1);
  chosen.push_back(kAbsentRow);
  const Tensor counts = empty({4}, DType::f32);
  Stream stream(1);
  count_choices(int_tensor({40'841, 1}, chosen), counts, stream);
  EXPECT_EQ(values(counts), (std::vector<double>{0, 40'840, 0, 40'841}));
}

struct Ordered {
  Tensor offsets, tokens, rows;
};

Ordered ordered(const Tensor& experts_TK, std::int64_t E) {
  Ordered made{empty({E + 1}, DType::i32), empty({experts_TK.count()}, DType::i32),
               empty(experts_TK.shape(), DType::i32)};
  Stream stream(1);
  order_by_expert(experts_TK, made.offsets, made.tokens, made.rows, stream);
  return made;
}

TEST(OrderByExpert, SortsByExpertTokenAndSlotAndLeavesOutWhatIsAbsent) {
  const Tensor experts = int_tensor({4, 2}, {3, 0, 0, 3, kAbsentRow, 1, 3, kAbsentRow});
  const Ordered order = ordered(experts, 5);
  EXPECT_EQ(ints(order.offsets), (std::vector<std::int32_t>{0, 2, 3, 3, 6, 6}));
  EXPECT_EQ(ints(order.tokens),
            (std::vector<std::int32_t>{0, 1, 2, 0, 1, 3, kAbsentRow, kAbsentRow}));
  EXPECT_EQ(ints(order.rows),
            (std::vector<std::int32_t>{3, 0, 1, 4, kAbsentRow, 2, 5, kAbsentRow}));
  EXPECT_THROW(ordered(int_tensor({1, 1}, {5}), 5), Error);
  EXPECT_THROW(ordered(int_tensor({1, 1}, {-1}), 5), Error);
}

/// Some choices of T tokens among E experts; the first expert gets none, the second half of them.
Tensor skewed(std::int64_t T, std::int64_t K, std::int64_t E) {
  std::vector<std::int32_t> chosen;
  for (std::int64_t i = 0; i < T * K; ++i) {
    const auto random = random_u64(11, static_cast<std::uint64_t>(i));
    chosen.push_back(random % 2 == 0 ? 1
                                     : static_cast<std::int32_t>(
                                           1 + random / 2 % static_cast<std::uint64_t>(E - 1)));
  }
  return int_tensor({T, K}, chosen);
}

TEST(SpreadRows, GivesATokenToAllItsRowsAndLeavesOthersAlone) {
  for (const DType dtype : kFloats) {
    for (const auto [tokens, width] : kSizes) {
      const Ordered order = ordered(skewed(tokens, 3, 5), 5);
      order.rows.host<std::int32_t>()[0] = kAbsentRow;
      const Padded x(random_tensor({tokens, width}, dtype, 1));
      const Tensor before = random_tensor({3 * tokens, width}, dtype, 2);
      std::vector<double> want = values(before);
      for (std::int64_t choice = 0; choice < 3 * tokens; ++choice) {
        const std::int32_t row = order.rows.host<std::int32_t>()[static_cast<std::size_t>(choice)];
        if (row == kAbsentRow) continue;
        for (std::int64_t i = 0; i < width; ++i) {
          want[static_cast<std::size_t>(row * width + i)] =
              get(x.view, choice / 3 * x.view.stride(0) + i);
        }
      }
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Padded rows(before);
        spread_rows(x.view, order.rows, rows.view, stream);
        return {copy_of(rows.view)};
      });
      EXPECT_EQ(values(got[0]), want);
    }
  }
  Stream stream(1);
  const Tensor x = random_tensor({1, 3}, DType::f32, 1), rows = empty({2, 3}, DType::f32);
  EXPECT_THROW(spread_rows(x, int_tensor({1, 1}, {2}), rows, stream), Error);
}

TEST(CombineRows, SumsWeightedRowsInTheOrderOfSlots) {
  for (const DType dtype : kFloats) {
    for (const auto [tokens, width] : kSizes) {
      const Ordered order = ordered(skewed(tokens, 3, 5), 5);
      order.rows.host<std::int32_t>()[0] = kAbsentRow;
      const Padded rows(random_tensor({3 * tokens, width}, dtype, 1));
      const Tensor weights = random_tensor({tokens, 3}, dtype, 2);
      const Tensor addend = random_tensor({tokens, width}, dtype, 3);
      std::vector<double> sums, weighted;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < width; ++i) {
          double sum = 0.0, with_weights = get(addend, t * width + i);
          for (std::int64_t k = 3 * t; k < 3 * t + 3; ++k) {
            const std::int32_t row = order.rows.host<std::int32_t>()[static_cast<std::size_t>(k)];
            if (row == kAbsentRow) continue;
            const double value = get(rows.view, row * rows.view.stride(0) + i);
            sum += value;
            with_weights += get(weights, k) * value;
          }
          sums.push_back(sum);
          weighted.push_back(with_weights);
        }
      }
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Padded y(addend), plain(addend);
        combine_rows(rows.view, order.rows, weights, addend, y.view, stream);
        combine_rows(rows.view, order.rows, {}, {}, plain.view, stream);
        return {copy_of(y.view), copy_of(plain.view)};
      });
      expect_close(got[0], weighted, 1e-6, 1e-14);
      expect_close(got[1], sums, 1e-6, 1e-14);
    }
  }
}

TEST(CombineRows, RefusesRowsThatAreNotThere) {
  Stream stream(1);
  const Tensor rows = random_tensor({2, 3}, DType::f32, 1), y = empty({1, 3}, DType::f32);
  EXPECT_THROW(combine_rows(rows, int_tensor({1, 1}, {2}), {}, {}, y, stream), Error);
  EXPECT_THROW(combine_rows(rows, int_tensor({1, 1}, {-1}), {}, {}, y, stream), Error);
}

TEST(ExpertSwigluBackward, IsTheSlopeOfTheWeightedExpert) {
  constexpr std::int64_t T = 4, K = 2, F = 9;
  const Tensor gate_up = random_tensor({T * K, 2 * F}, DType::f64, 1);
  const Tensor weights = random_tensor({T, K}, DType::f64, 2);
  const Tensor dy = random_tensor({T * K, F}, DType::f64, 3);
  const Tensor rows = ordered(skewed(T, K, 3), 3).rows;
  const auto hidden = [&](std::int64_t row, std::int64_t i) {
    const double g = get(gate_up, row * 2 * F + i);
    return g / (1.0 + std::exp(-g)) * get(gate_up, row * 2 * F + F + i);
  };
  const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
    const Tensor d = copy_of(gate_up), y = empty({T * K, F}, DType::f64),
                 dweights = empty({T, K}, DType::f64);
    expert_swiglu_backward(dy, d, rows, weights, d, y, dweights, stream);
    return {d, y, dweights};
  });
  const auto objective = [&] {
    double sum = 0.0;
    for (std::int64_t choice = 0; choice < T * K; ++choice) {
      const std::int64_t row = rows.host<std::int32_t>()[static_cast<std::size_t>(choice)];
      for (std::int64_t i = 0; i < F; ++i) {
        sum += get(weights, choice) * hidden(row, i) * get(dy, row * F + i);
      }
    }
    return sum;
  };
  expect_slopes(gate_up, got[0], objective);
  expect_slopes(weights, got[2], objective);
  for (std::int64_t choice = 0; choice < T * K; ++choice) {
    const std::int64_t row = rows.host<std::int32_t>()[static_cast<std::size_t>(choice)];
    for (std::int64_t i = 0; i < F; ++i) {
      EXPECT_NEAR(get(got[1], row * F + i), get(weights, choice) * hidden(row, i), 1e-14);
    }
  }
}

TEST(ExpertSwigluBackward, AgreesInSinglePrecision) {
  constexpr std::int64_t T = 33, K = 3, F = 130;
  const Tensor rows = ordered(skewed(T, K, 7), 7).rows;
  const auto in = [&](DType dtype) {
    Stream stream(2);
    const Tensor gate_up = random_tensor({T * K, 2 * F}, dtype, 1),
                 weights = random_tensor({T, K}, dtype, 2),
                 dy = random_tensor({T * K, F}, dtype, 3), y = empty({T * K, F}, dtype),
                 dweights = empty({T, K}, dtype);
    expert_swiglu_backward(dy, gate_up, rows, weights, gate_up, y, dweights, stream);
    return std::vector<Tensor>{gate_up, y, dweights};
  };
  const auto got = in(DType::f32), want = in(DType::f64);
  for (std::size_t i = 0; i < got.size(); ++i) expect_close(got[i], values(want[i]), 2e-5, 0);
}

TEST(GroupedSwigluBackward, DifferentiatesWhatTheProductWithDownGives) {
  constexpr std::int64_t T = 40, K = 2, E = 6, D = 5, F = 7;
  const Ordered order = ordered(skewed(T, K, E), E);
  const Tensor dout = random_tensor({T * K, D}, DType::f64, 1),
               down = random_tensor({E, D, F}, DType::f64, 2),
               gate_up = random_tensor({T * K, 2 * F}, DType::f64, 3),
               weights = random_tensor({T, K}, DType::f64, 4);
  const auto offsets = ints(order.offsets);
  const Tensor dy = empty({T * K, F}, DType::f64);
  for (std::int64_t e = 0; e < E; ++e) {
    for (std::int64_t row = offsets[static_cast<std::size_t>(e)];
         row < offsets[static_cast<std::size_t>(e + 1)]; ++row) {
      for (std::int64_t f = 0; f < F; ++f) {
        double sum = 0.0;
        for (std::int64_t d = 0; d < D; ++d) {
          sum += get(dout, row * D + d) * get(down, (e * D + d) * F + f);
        }
        dy.host<double>()[static_cast<std::size_t>(row * F + f)] = sum;
      }
    }
  }
  Stream stream(1);
  const Tensor want = copy_of(gate_up), want_y = empty({T * K, F}, DType::f64),
               want_dweights = empty({T, K}, DType::f64);
  expert_swiglu_backward(dy, want, order.rows, weights, want, want_y, want_dweights, stream);
  const auto got = on_any_threads([&](Stream& on) -> std::vector<Tensor> {
    const Tensor scratch = empty({T * K, F}, DType::f64), d = empty({T * K, 2 * F}, DType::f64),
                 y = empty({T * K, F}, DType::f64), dweights = empty({T, K}, DType::f64);
    grouped_swiglu_backward(dout, down, order.offsets, gate_up, order.rows, weights, scratch, d, y,
                            dweights, on);
    return {d, y, dweights};
  });
  expect_close(got[0], values(want), 0, 1e-13);
  expect_close(got[1], values(want_y), 0, 1e-13);
  expect_close(got[2], values(want_dweights), 0, 1e-13);
}

TEST(GroupedGemm, MultipliesEachExpertsRowsByItsMatrix) {
  constexpr std::int64_t T = 40, K = 2, E = 6, M = 5, N = 7;
  for (const DType dtype : kFloats) {
    const Ordered order = ordered(skewed(T, K, E), E);
    const auto offsets = ints(order.offsets);
    ASSERT_EQ(offsets[1], 0) << "an expert without rows";
    const Tensor a = random_tensor({T * K, M}, dtype, 1), b = random_tensor({E, M, N}, dtype, 2),
                 bt = random_tensor({E, N, M}, dtype, 3), d = random_tensor({T * K, N}, dtype, 4);
    const Tensor before = random_tensor({E, M, N}, dtype, 5);
    const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
      const Tensor c = empty({T * K, N}, dtype), ct = empty({T * K, N}, dtype),
                   first = copy_of(before), added = copy_of(before);
      grouped_gemm(a, b, Transpose::no, order.offsets, c, stream);
      grouped_gemm(a, bt, Transpose::yes, order.offsets, ct, stream);
      grouped_gemm_weight(a, d, order.offsets, 0.0, first, stream);
      grouped_gemm_weight(a, d, order.offsets, 1.0, added, stream);
      return {c, ct, first, added};
    });
    std::vector<double> c, ct, first(static_cast<std::size_t>(E * M * N), 0.0),
        added = values(before);
    for (std::int64_t e = 0; e < E; ++e) {
      for (std::int64_t r = offsets[static_cast<std::size_t>(e)];
           r < offsets[static_cast<std::size_t>(e) + 1]; ++r) {
        for (std::int64_t n = 0; n < N; ++n) {
          double sum = 0.0, transposed = 0.0;
          for (std::int64_t m = 0; m < M; ++m) {
            sum += get(a, r * M + m) * get(b, (e * M + m) * N + n);
            transposed += get(a, r * M + m) * get(bt, (e * N + n) * M + m);
            const double of_weight = get(a, r * M + m) * get(d, r * N + n);
            first[static_cast<std::size_t>((e * M + m) * N + n)] += of_weight;
            added[static_cast<std::size_t>((e * M + m) * N + n)] += of_weight;
          }
          c.push_back(sum);
          ct.push_back(transposed);
        }
      }
    }
    expect_close(got[0], c, 1e-5, 1e-13);
    expect_close(got[1], ct, 1e-5, 1e-13);
    expect_close(got[2], first, 1e-5, 1e-13);
    expect_close(got[3], added, 1e-5, 1e-13);
    for (std::int64_t i = 0; i < M * N; ++i) EXPECT_EQ(get(got[2], i), 0.0) << "of the first";
  }
}

/// Cut anywhere, also within an expert's rows, between experts and where none are left.
TEST(GroupedGemm, AddsPartsOfTheRowsOneAfterTheOther) {
  constexpr std::int64_t T = 40, K = 2, R = T * K, E = 6, M = 5, N = 7;
  Stream stream(1);
  for (const DType dtype : kFloats) {
    const Ordered order = ordered(skewed(T, K, E), E);
    const auto offsets = ints(order.offsets);
    const Tensor a = random_tensor({R, M}, dtype, 1), b = random_tensor({R, N}, dtype, 2),
                 before = random_tensor({E, M, N}, dtype, 3);
    for (const double beta : {0.0, 1.0, 0.5}) {
      const Tensor whole = copy_of(before);
      grouped_gemm_weight(a, b, order.offsets, beta, whole, stream);
      for (const std::vector<std::int64_t>& ends : {std::vector<std::int64_t>{R},
                                                    {1, 2, R},
                                                    {17, 34, 51, 68, R},
                                                    {offsets[2], R},
                                                    {offsets[6], R}}) {
        const Tensor parts = copy_of(before);
        std::int64_t first = 0;
        for (const std::int64_t end : ends) {
          const std::vector<double> was = values(parts);
          grouped_gemm_weight_part(a.slice(0, first, end), b.slice(0, first, end), order.offsets,
                                   first, beta, parts, stream);
          for (std::int64_t e = 0; e < E; ++e) {
            const auto at = static_cast<std::size_t>(e);
            const bool is_here = offsets[at] < end && offsets[at + 1] > first;
            const bool has_none = offsets[at] == offsets[at + 1];
            if (is_here || has_none) continue;
            for (std::int64_t i = e * M * N; i < (e + 1) * M * N; ++i) {
              ASSERT_EQ(get(parts, i), was[static_cast<std::size_t>(i)]) << "expert " << e;
            }
          }
          first = end;
        }
        expect_close(parts, values(whole), 1e-5, 1e-13);
      }
    }
  }
}

TEST(HeldOffsets, AreThoseOfAPartOfTheRows) {
  Stream stream(1);
  const Tensor offsets = ids({0, 0, 3, 7, 7, 12}), held = empty({6}, DType::i32);
  held_offsets(offsets, 2, 6, held, stream);
  EXPECT_EQ(ints(held), (std::vector<std::int32_t>{0, 0, 1, 5, 5, 6}));
  held_offsets(offsets, 0, 20, held, stream);
  EXPECT_EQ(ints(held), ints(offsets));
  EXPECT_THROW(held_offsets(offsets, 0, 6, empty({5}, DType::i32), stream), Error);
}

TEST(GroupedGemm, LeavesRowsOfNoExpertAloneAndRefusesOffsetsBeyondThem) {
  Stream stream(1);
  const Tensor a = random_tensor({4, 3}, DType::f32, 1),
               b = random_tensor({2, 3, 2}, DType::f32, 2);
  const Tensor c = empty({4, 2}, DType::f32);
  fill(c, 7.0, stream);
  grouped_gemm(a, b, Transpose::no, ids({0, 1, 3}), c, stream);
  EXPECT_NE(get(c, 5), 7.0);
  EXPECT_EQ(get(c, 6), 7.0);
  EXPECT_EQ(get(c, 7), 7.0);
  EXPECT_THROW(grouped_gemm(a, b, Transpose::no, ids({0, 1, 5}), c, stream), Error);
  EXPECT_THROW(grouped_gemm(a, b, Transpose::no, ids({0, 3, 1}), c, stream), Error);
}

}  // namespace
}  // namespace heddle::ops
