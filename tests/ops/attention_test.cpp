#include "ops/attention.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace heddle {
namespace {

struct Sizes {
  std::int64_t batch, queries, keys, heads, groups, width;
  std::int64_t query_offset = 0;
  std::int64_t document = 0;  ///< longest document in the mask; 0: no mask
  std::int64_t window = 0;    ///< of keys that a query sees; 0: all before it
  double cap = 0.0;           ///< of scores
};

std::ostream& operator<<(std::ostream& out, const Sizes& x) {
  return out << "B" << x.batch << " S" << x.queries << " T" << x.keys << " H" << x.heads << " G"
             << x.groups << " K" << x.width << " offset " << x.query_offset << " document "
             << x.document << " window " << x.window << " cap " << x.cap;
}

/// A [B, S, H, K] array of doubles.
struct Array {
  std::int64_t batch, length, heads, width;
  std::vector<double> values;

  Array(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t k)
      : batch(b), length(s), heads(h), width(k), values(static_cast<std::size_t>(b * s * h * k)) {}
  double& at(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t k) {
    return values[static_cast<std::size_t>(((b * length + s) * heads + h) * width + k)];
  }
};

template <class T>
void fill_normal(const Tensor& t, std::uint64_t seed, double deviation = 1) {
  std::uint64_t index = 0;
  for (T& value : t.host<T>()) {
    value = static_cast<T>(deviation * random_normal(seed, index++));
  }
}

template <class T>
Array values_of(const Tensor& t) {
  Array result(t.size(0), t.size(1), t.size(2), t.size(3));
  for (std::int64_t b = 0; b < t.size(0); ++b) {
    for (std::int64_t s = 0; s < t.size(1); ++s) {
      for (std::int64_t h = 0; h < t.size(2); ++h) {
        const T* const row = t.data<T>() + b * t.stride(0) + s * t.stride(1) + h * t.stride(2);
        for (std::int64_t k = 0; k < t.size(3); ++k) {
          result.at(b, s, h, k) = static_cast<double>(row[k]);
        }
      }
    }
  }
  return result;
}

/// The operation's tensors, with what a test may want to vary already filled in.
struct Problem {
  Memory memory;
  Sizes sizes;
  DType dtype;
  double scale;
  ops::ScoreRule rule;
  ops::AttentionMask mask;
  Tensor q, k, v, out, lse, dout, dq, dk, dv, delta;

  Problem(const Sizes& x, DType type)
      : sizes(x),
        dtype(type),
        scale(1 / std::sqrt(static_cast<double>(x.width))),
        rule(scale, x.cap) {
    const Shape query_shape{x.batch, x.queries, x.heads, x.width};
    const Shape key_shape{x.batch, x.keys, x.groups, x.width};
    for (Tensor* t : {&q, &out, &dout, &dq}) *t = alloc(query_shape);
    for (Tensor* t : {&k, &v, &dk, &dv}) *t = alloc(key_shape);
    for (Tensor* t : {&lse, &delta}) *t = alloc({x.batch, x.heads, x.queries});
    mask.query_offset = x.query_offset;
    if (x.document > 0) add_documents();
    if (x.window > 0) add_window();
  }
  Tensor alloc(const Shape& shape) { return memory.alloc(shape, dtype, MemoryTag::workspace); }

  template <class T>
  void fill(double deviation = 1) {
    std::uint64_t seed = 1;
    for (const Tensor* t : {&q, &k, &v, &dout}) fill_normal<T>(*t, seed++, deviation);
  }

  /// Documents of random lengths up to sizes.document, other ones in every batch.
  void add_documents() {
    mask.first_key_BS =
        memory.alloc({sizes.batch, sizes.queries}, DType::i32, MemoryTag::workspace);
    auto first = mask.first_key_BS.host<std::int32_t>();
    std::uint64_t index = 0;
    for (std::int64_t b = 0; b < sizes.batch; ++b) {
      std::int64_t start = 0, end = 0;
      for (std::int64_t position = 0; position < sizes.query_offset + sizes.queries; ++position) {
        if (position == end) {
          start = end;
          end += 1 + static_cast<std::int64_t>(random_u64(7, index++) %
                                               static_cast<std::uint64_t>(sizes.document));
        }
        const std::int64_t s = position - sizes.query_offset;
        if (s >= 0)
          first[static_cast<std::size_t>(b * sizes.queries + s)] = static_cast<std::int32_t>(start);
      }
    }
  }
  void add_window() {
    documents = mask.first_key_BS;
    const Tensor first =
        memory.alloc({sizes.batch, sizes.queries}, DType::i32, MemoryTag::workspace);
    Stream stream(1);
    ops::window_first_keys(mask, sizes.window, first, stream);
    mask.first_key_BS = first;
  }
  Tensor documents;  ///< first keys without the window
  bool sees(std::int64_t b, std::int64_t s, std::int64_t j) const {
    if (sizes.window > 0) {
      const std::int64_t start =
          documents.defined() ? documents.data<std::int32_t>()[b * documents.stride(0) + s] : 0;
      const std::int64_t at = sizes.query_offset + s;
      return start <= j && j <= at && j > at - sizes.window;
    }
    const std::int64_t first =
        mask.first_key_BS.defined()
            ? mask.first_key_BS.data<std::int32_t>()[b * mask.first_key_BS.stride(0) + s]
            : 0;
    return first <= j && j <= sizes.query_offset + s;
  }
  void forward(int threads) {
    Stream stream(threads);
    ops::attention_forward(q, k, v, mask, rule, out, lse, stream);
  }
  void backward(int threads) {
    Stream stream(threads);
    ops::attention_backward(dout, q, k, v, out, lse, mask, rule, dq, dk, dv, delta, stream);
  }
};

/// What the operations should give, by the definition, with the whole matrix of probabilities.
struct Expected {
  Array out, lse, dq, dk, dv;

  template <class T>
  static Expected of(const Problem& p) {
    const Sizes& x = p.sizes;
    Array q = values_of<T>(p.q), k = values_of<T>(p.k), v = values_of<T>(p.v);
    Array dout = values_of<T>(p.dout);
    Expected e{q, Array(x.batch, x.heads, x.queries, 1), Array(q), Array(k), Array(v)};
    for (Array* a : {&e.out, &e.dq, &e.dk, &e.dv}) {
      std::fill(a->values.begin(), a->values.end(), 0.0);
    }
    std::vector<double> probability(static_cast<std::size_t>(x.keys)), gradient(probability),
        bent(probability);  // the slope of the cap
    for (std::int64_t b = 0; b < x.batch; ++b) {
      for (std::int64_t h = 0; h < x.heads; ++h) {
        const std::int64_t g = h / (x.heads / x.groups);
        for (std::int64_t s = 0; s < x.queries; ++s) {
          double max = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
          for (std::int64_t j = 0; j < x.keys; ++j) {
            double score = 0;
            for (std::int64_t i = 0; i < x.width; ++i) score += q.at(b, s, h, i) * k.at(b, j, g, i);
            score *= p.scale;
            if (x.cap > 0) score = x.cap * std::tanh(score / x.cap);
            probability[static_cast<std::size_t>(j)] = score;
            bent[static_cast<std::size_t>(j)] =
                x.cap > 0 ? 1 - (score / x.cap) * (score / x.cap) : 1.0;
            if (p.sees(b, s, j)) max = std::max(max, score);
          }
          for (std::int64_t j = 0; j < x.keys; ++j) {
            double& value = probability[static_cast<std::size_t>(j)];
            value = p.sees(b, s, j) ? std::exp(value - max) : 0;
            sum += value;
          }
          e.lse.at(b, h, s, 0) = max + std::log(sum);
          for (std::int64_t j = 0; j < x.keys; ++j) {
            double& value = probability[static_cast<std::size_t>(j)];
            value /= sum;
            double& slope = gradient[static_cast<std::size_t>(j)] = 0;
            for (std::int64_t i = 0; i < x.width; ++i) {
              e.out.at(b, s, h, i) += value * v.at(b, j, g, i);
              e.dv.at(b, j, g, i) += value * dout.at(b, s, h, i);
              slope += dout.at(b, s, h, i) * v.at(b, j, g, i);
            }
            delta += value * slope;
          }
          for (std::int64_t j = 0; j < x.keys; ++j) {
            const auto n = static_cast<std::size_t>(j);
            const double slope = probability[n] * (gradient[n] - delta) * bent[n] * p.scale;
            for (std::int64_t i = 0; i < x.width; ++i) {
              e.dq.at(b, s, h, i) += slope * k.at(b, j, g, i);
              e.dk.at(b, j, g, i) += slope * q.at(b, s, h, i);
            }
          }
        }
      }
    }
    return e;
  }
};

/// Every value within `tolerance` of the expected one, relative to the largest.
void expect_close(const Array& expected, const Array& found, double tolerance, const char* what) {
  ASSERT_EQ(expected.values.size(), found.values.size());
  double largest = 1e-30, worst = 0;
  for (const double value : expected.values) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double error = std::abs(expected.values[i] - found.values[i]) / largest;
    worst = std::isfinite(error) ? std::max(worst, error) : 1e300;
  }
  EXPECT_LT(worst, tolerance) << what;
}

template <class T>
Array lse_of(const Problem& p) {
  return values_of<T>(p.lse.view({p.sizes.batch, p.sizes.heads, p.sizes.queries, 1}));
}

template <class T>
void check(const Problem& p, double tolerance, bool with_gradients) {
  const Expected expected = Expected::of<T>(p);
  expect_close(expected.out, values_of<T>(p.out), tolerance, "out");
  expect_close(expected.lse, lse_of<T>(p), tolerance, "lse");
  if (!with_gradients) return;
  expect_close(expected.dq, values_of<T>(p.dq), tolerance, "dq");
  expect_close(expected.dk, values_of<T>(p.dk), tolerance, "dk");
  expect_close(expected.dv, values_of<T>(p.dv), tolerance, "dv");
}

template <class T>
double tolerance_of() {
  return sizeof(T) == 4 ? 3e-6 : 1e-13;
}

template <class T>
void check_training(const Sizes& sizes) {
  SCOPED_TRACE(sizes);
  Problem p(sizes, DTypeOf<T>::value);
  p.fill<T>();
  p.forward(2);
  p.backward(2);
  check<T>(p, tolerance_of<T>(), true);
}

/// [S, S] attention in the sizes where blocks, tiles, vectors and strips end badly.
const std::vector<Sizes>& training_sizes() {
  static const std::vector<Sizes> sizes = {
      {1, 1, 1, 1, 1, 1},
      {1, 3, 3, 1, 1, 3},
      {2, 127, 127, 2, 2, 16},
      {1, 129, 129, 3, 1, 20},
      {2, 65, 65, 6, 2, 64},
      {1, 64, 64, 4, 1, 127},
      {1, 200, 200, 1, 1, 129},
      {1, 129, 129, 4, 4, 80},
      {2, 127, 127, 4, 2, 32, 0, 5},
      {1, 300, 300, 2, 1, 8, 0, 150},
      {3, 129, 129, 2, 2, 64, 0, 40},
      {2, 200, 200, 2, 1, 16, 0, 0, 2},
      {1, 300, 300, 3, 3, 20, 0, 0, 70},
      {2, 129, 129, 4, 2, 8, 0, 90, 33},
      {1, 65, 65, 2, 1, 16, 0, 0, 4096},
      {2, 130, 130, 2, 1, 16, 0, 0, 0, 0.7},
      {1, 200, 200, 4, 2, 24, 0, 60, 40, 2.0},
  };
  return sizes;
}

TEST(Attention, ForwardAndBackwardEqualTheDefinitionInF32) {
  for (const Sizes& sizes : training_sizes()) check_training<float>(sizes);
}

TEST(Attention, ForwardAndBackwardEqualTheDefinitionInF64) {
  for (const Sizes& sizes : training_sizes()) check_training<double>(sizes);
}

TEST(Attention, EverySimdTargetGivesTheSame) {
  const std::int64_t all = hwy::SupportedTargets();
  for (const std::int64_t target : {HWY_AVX3, HWY_AVX2, HWY_STATIC_TARGET}) {
    if ((all & target) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    check_training<float>({1, 70, 70, 2, 1, 20, 0, 30});
    check_training<double>({1, 70, 70, 2, 1, 20, 0, 30});
  }
  hwy::GetChosenTarget().Update(all);
}

TEST(Attention, DecodesWithACacheOfEarlierKeys) {
  for (const Sizes& sizes :
       {Sizes{1, 1, 1, 2, 1, 64}, Sizes{2, 1, 129, 4, 4, 64, 128}, Sizes{1, 1, 127, 8, 2, 64, 126},
        Sizes{1, 5, 17, 6, 3, 32, 12}, Sizes{1, 5, 40, 2, 2, 20, 12},
        Sizes{2, 70, 200, 4, 1, 16, 130, 90}, Sizes{1, 1, 200, 4, 2, 16, 199, 0, 30, 1.5},
        Sizes{2, 70, 200, 4, 1, 16, 130, 90, 64}}) {
    SCOPED_TRACE(sizes);
    Problem p(sizes, DType::f32);
    p.fill<float>();
    p.forward(2);
    check<float>(p, tolerance_of<float>(), false);
    Problem p64(sizes, DType::f64);
    p64.fill<double>();
    p64.forward(1);
    check<double>(p64, tolerance_of<double>(), false);
  }
}

/// Moves q, k, v and their gradients into views of fused tensors.
void check_fused(Problem& p, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dq,
                 const Tensor& dk, const Tensor& dv) {
  p.q = q, p.k = k, p.v = v, p.dq = dq, p.dk = dk, p.dv = dv;
  fill_normal<float>(p.dout, 9);
  p.forward(2);
  p.backward(2);
  check<float>(p, tolerance_of<float>(), true);
}

TEST(Attention, TakesSlicesOfAFusedProjection) {
  const std::int64_t b = 2, s = 100, h = 6, g = 2, k = 24;
  Problem p({b, s, s, h, g, k}, DType::f32);
  const Tensor fused = p.alloc({b, s, (h + 2 * g) * k}),
               gradient = p.alloc({b, s, (h + 2 * g) * k});
  fill_normal<float>(fused, 3);
  const auto part = [&](const Tensor& t, std::int64_t begin, std::int64_t heads) {
    return t.slice(2, begin * k, (begin + heads) * k).view({b, s, heads, k});
  };
  check_fused(p, part(fused, 0, h), part(fused, h, g), part(fused, h + g, g), part(gradient, 0, h),
              part(gradient, h, g), part(gradient, h + g, g));
}

TEST(Attention, TakesHeadsWithTheirOwnQueryKeyAndValue) {
  const std::int64_t b = 2, s = 70, h = 3, k = 32;
  Problem p({b, s, s, h, h, k}, DType::f32);
  const Tensor fused = p.alloc({b, s, h, 3, k}), gradient = p.alloc({b, s, h, 3, k});
  fill_normal<float>(fused, 4);
  check_fused(p, fused.select(3, 0), fused.select(3, 1), fused.select(3, 2), gradient.select(3, 0),
              gradient.select(3, 1), gradient.select(3, 2));
}

std::vector<std::byte> bytes_of(const Problem& p) {
  std::vector<std::byte> bytes;
  for (const Tensor* t : {&p.out, &p.lse, &p.dq, &p.dk, &p.dv}) {
    bytes.insert(bytes.end(), t->bytes(), t->bytes() + t->size_bytes());
  }
  return bytes;
}

TEST(Attention, IsTheSameToTheBitOnAnyNumberOfThreads) {
  for (const Sizes& sizes : {Sizes{1, 200, 200, 4, 1, 64}, Sizes{3, 129, 129, 4, 2, 32, 0, 60},
                             Sizes{2, 600, 600, 1, 1, 16}}) {
    SCOPED_TRACE(sizes);
    Problem p(sizes, DType::f32);
    p.fill<float>();
    p.forward(1);
    p.backward(1);
    const std::vector<std::byte> one = bytes_of(p);
    for (const int threads : {2, 3, 4, 7}) {
      for (const Tensor* t : {&p.out, &p.lse, &p.dq, &p.dk, &p.dv, &p.delta}) {
        std::memset(t->bytes(), 0xff, t->size_bytes());
      }
      p.forward(threads);
      p.backward(threads);
      EXPECT_EQ(one, bytes_of(p)) << threads << " threads";
    }
  }
}

TEST(Attention, StandsLargeScores) {
  Problem p({1, 129, 129, 2, 1, 64, 0, 50}, DType::f32);
  p.fill<float>(100);  // scores of the order of 10^4
  p.forward(1);
  p.backward(1);
  for (const Tensor* t : {&p.out, &p.lse, &p.dq, &p.dk, &p.dv}) {
    for (const float value : t->host<float>()) ASSERT_TRUE(std::isfinite(value));
  }
  const Expected expected = Expected::of<float>(p);
  expect_close(expected.lse, lse_of<float>(p), 1e-6, "lse");
  // A score of 10^4 has an error of 10^-3 in f32.
  expect_close(expected.out, values_of<float>(p.out), 1e-2, "out");
}

TEST(Attention, ShowsNotANumberInItsInput) {
  Problem p({1, 70, 70, 1, 1, 16}, DType::f32);
  p.fill<float>();
  p.k.host<float>()[3 * 16] = std::numeric_limits<float>::quiet_NaN();
  p.forward(1);
  EXPECT_TRUE(std::isfinite(p.out.host<float>()[2 * 16]));  // before the bad key
  EXPECT_TRUE(std::isnan(p.out.host<float>()[3 * 16]));
  EXPECT_TRUE(std::isnan(p.out.host<float>()[69 * 16]));
}

TEST(Attention, OneVisibleKeyIsCopied) {
  Problem p({1, 5, 5, 1, 1, 3, 0, 1}, DType::f32);
  p.fill<float>();
  p.forward(1);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(p.out.host<float>()[i], p.v.host<float>()[i]);
}

TEST(Attention, RefusesShapesThatDoNotFit) {
  Problem p({1, 4, 4, 3, 1, 8}, DType::f32);
  p.fill<float>();
  p.mask.query_offset = 1;  // five keys needed, four given
  EXPECT_THROW(p.forward(1), Error);
  Problem cached({1, 2, 4, 3, 1, 8, 2}, DType::f32);
  cached.fill<float>();
  EXPECT_THROW(cached.backward(1), Error);
}

}  // namespace
}  // namespace heddle
