#pragma once

// A sequence that is cut into runs of queries and keys, and attention on all pairs of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "ops/attention.h"
#include "ops/op_testing.h"

namespace heddle::ops {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct SequenceSizes {
  std::int64_t batch, length, heads, groups, width;
  std::vector<std::int64_t> documents = {};  ///< lengths; repeated to the sequence's end
  std::int64_t window = 0;                   ///< keys that a query sees at most; 0: all
};

inline std::int64_t below(std::int64_t limit, std::uint64_t seed, std::uint64_t index) {
  return static_cast<std::int64_t>(random_u64(seed, index) % static_cast<std::uint64_t>(limit));
}

inline Tensor cast_to(DType dtype, const Tensor& from) {
  const Tensor t = empty(from.shape(), dtype);
  set(t, values(from));
  return t;
}

/// Results over a whole sequence: of the operation on all of it, or collected block by block.
struct Results {
  Tensor out, lse, dq, dk, dv;
};

/// The values of a sequence, and attention over the whole of it. The same values for every type:
/// they are exact in f32.
class Sequence {
 public:
  Sequence(const SequenceSizes& sizes, DType dtype, double range = 1.5)
      : sizes(sizes), dtype(dtype) {
    const Shape queries{sizes.batch, sizes.length, sizes.heads, sizes.width};
    const Shape keys{sizes.batch, sizes.length, sizes.groups, sizes.width};
    scale = 1 / std::sqrt(static_cast<double>(sizes.width));
    q = cast_to(dtype, random_tensor(queries, DType::f32, 1, range));
    k = cast_to(dtype, random_tensor(keys, DType::f32, 2, range));
    v = cast_to(dtype, random_tensor(keys, DType::f32, 3));
    dout = cast_to(dtype, random_tensor(queries, DType::f32, 4));
    if (!sizes.documents.empty()) first_key = document_starts();
    if (sizes.window > 0) {
      Stream stream(1);
      const Tensor in_window = empty({sizes.batch, sizes.length}, DType::i32);
      window_first_keys({.query_offset = 0, .first_key_BS = first_key}, sizes.window, in_window,
                        stream);
      first_key = in_window;
    }
  }

  Results whole(DType type) const {
    Stream stream(2);
    const Tensor x = cast_to(type, q), y = cast_to(type, k), z = cast_to(type, v);
    Results r = empty_results(type);
    const AttentionMask mask{.query_offset = 0, .first_key_BS = first_key};
    attention_forward(x, y, z, mask, scale, r.out, r.lse, stream);
    attention_backward(cast_to(type, dout), x, y, z, r.out, r.lse, mask, scale, r.dq, r.dk, r.dv,
                       empty(r.lse.shape(), type), stream);
    return r;
  }

  Results empty_results(DType type) const {
    const Shape statistics{sizes.batch, sizes.heads, sizes.length};
    return {empty(q.shape(), type), empty(statistics, type), empty(q.shape(), type),
            empty(k.shape(), type), empty(k.shape(), type)};
  }

  AttentionMask mask(std::int64_t query_begin, std::int64_t query_end,
                     std::int64_t key_begin) const {
    AttentionMask result{.query_offset = query_begin, .first_key_BS = {}, .key_offset = key_begin};
    if (first_key.defined()) result.first_key_BS = first_key.slice(1, query_begin, query_end);
    return result;
  }

  SequenceSizes sizes;
  DType dtype;
  double scale;
  Tensor q, k, v, dout, first_key;

 private:
  /// The list begins at another place in every batch.
  Tensor document_starts() const {
    const Tensor starts = empty({sizes.batch, sizes.length}, DType::i32);
    for (std::int64_t b = 0; b < sizes.batch; ++b) {
      std::int64_t start = 0, end = 0;
      for (auto at = static_cast<std::size_t>(b); end < sizes.length; ++at) {
        start = end;
        end = std::min(start + sizes.documents[at % sizes.documents.size()], sizes.length);
        std::fill_n(starts.data<std::int32_t>() + b * sizes.length + start, end - start,
                    static_cast<std::int32_t>(start));
      }
    }
    return starts;
  }
};

/// Where a sequence is cut: 0, ..., length. A number that comes twice makes an empty run.
using Cut = std::vector<std::int64_t>;

struct Pair {
  std::size_t query, key;
};

/// All pairs of runs of queries and runs of keys, in an order of the seed.
inline std::vector<Pair> shuffled_pairs(const Cut& queries, const Cut& keys, std::uint64_t seed) {
  const std::size_t columns = keys.size() - 1, count = (queries.size() - 1) * columns;
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t at = random_permutation(seed, i, count);
    pairs.push_back(
        {static_cast<std::size_t>(at) / columns, static_cast<std::size_t>(at) % columns});
  }
  return pairs;
}

/// Forward and backward block by block. Every pair is computed, also those that see nothing.
inline Results by_blocks(const Sequence& x, const Cut& queries, const Cut& keys, std::uint64_t seed,
                         int threads = 2) {
  Stream stream(threads);
  Results r = x.empty_results(x.dtype);
  for (const Tensor* t : {&r.out, &r.lse}) std::memset(t->bytes(), 0xff, t->size_bytes());  // NaN
  for (const Tensor* t : {&r.dq, &r.dk, &r.dv}) std::memset(t->bytes(), 0, t->size_bytes());
  std::vector<bool> has_begun(queries.size(), false);
  for (const auto& [i, j] : shuffled_pairs(queries, keys, seed)) {
    const std::int64_t begin = queries[i], end = queries[i + 1];
    attention_block_forward(x.q.slice(1, begin, end), x.k.slice(1, keys[j], keys[j + 1]),
                            x.v.slice(1, keys[j], keys[j + 1]), x.mask(begin, end, keys[j]),
                            x.scale, has_begun[i] ? KeyBlock::further : KeyBlock::first,
                            r.out.slice(1, begin, end), r.lse.slice(2, begin, end), stream);
    has_begun[i] = true;
  }
  const Tensor delta = empty(r.lse.shape(), x.dtype);
  attention_delta(x.dout, r.out, delta, stream);
  for (const auto& [i, j] : shuffled_pairs(queries, keys, seed + 1)) {
    const std::int64_t begin = queries[i], end = queries[i + 1];
    const auto of_keys = [&, j = j](const Tensor& t) { return t.slice(1, keys[j], keys[j + 1]); };
    attention_block_backward(x.dout.slice(1, begin, end), x.q.slice(1, begin, end), of_keys(x.k),
                             of_keys(x.v), r.lse.slice(2, begin, end), delta.slice(2, begin, end),
                             x.mask(begin, end, keys[j]), x.scale, r.dq.slice(1, begin, end),
                             of_keys(r.dk), of_keys(r.dv), stream);
  }
  return r;
}

inline double tolerance_of(DType dtype) { return dtype == DType::f32 ? 1e-5 : 1e-12; }

/// Every value within `tolerance` of the wanted one, relative to the largest.
inline void expect_near(const Tensor& want, const Tensor& got, double tolerance, const char* what) {
  const std::vector<double> wanted = values(want), found = values(got);
  ASSERT_EQ(wanted.size(), found.size());
  double largest = 1e-30, worst = 0;
  for (const double value : wanted) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double error = std::abs(wanted[i] - found[i]) / largest;
    worst = std::isfinite(error) ? std::max(worst, error) : kInfinity;
  }
  EXPECT_LE(worst, tolerance) << what;
}

inline void expect_near(const Results& want, const Results& got, double tolerance) {
  expect_near(want.out, got.out, tolerance, "out");
  expect_near(want.lse, got.lse, tolerance, "lse");
  expect_near(want.dq, got.dq, tolerance, "dq");
  expect_near(want.dk, got.dk, tolerance, "dk");
  expect_near(want.dv, got.dv, tolerance, "dv");
}

/// `runs` runs of random lengths, some of them empty.
inline Cut random_cut(std::int64_t length, int runs, std::uint64_t seed) {
  Cut cut{0, length};
  for (int i = 1; i < runs; ++i) {
    cut.push_back(below(length + 1, seed, static_cast<std::uint64_t>(i)));
  }
  std::ranges::sort(cut);
  return cut;
}

inline Cut even_cut(std::int64_t length, std::int64_t run) {
  Cut cut;
  for (std::int64_t at = 0; at < length; at += run) cut.push_back(at);
  cut.push_back(length);
  return cut;
}

}  // namespace heddle::ops
