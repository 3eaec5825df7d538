// Attention on blocks of a sequence, in any cut and any order, against attention on the whole of
// it.

#include <numeric>

#include "ops/attention_block_testing.h"

namespace heddle::ops {
namespace {

const std::vector<SequenceSizes>& block_sizes() {
  static const std::vector<SequenceSizes> sizes = {
      {1, 130, 2, 2, 64},
      {2, 100, 6, 2, 20},
      {1, 200, 4, 1, 33},
      {1, 70, 3, 3, 128},
      {2, 300, 4, 2, 16, {1, 2, 137, 64, 63}},
      {1, 257, 8, 1, 8, {40, 1, 1, 100}},
  };
  return sizes;
}

class AttentionBlock : public testing::TestWithParam<DType> {
 protected:
  DType dtype_ = GetParam();
  double tolerance_ = tolerance_of(dtype_);
};

INSTANTIATE_TEST_SUITE_P(Types, AttentionBlock, testing::ValuesIn(kFloats),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(AttentionBlock, AnyCutInAnyOrderEqualsTheWhole) {
  std::uint64_t seed = 10;
  for (const SequenceSizes& sizes : block_sizes()) {
    const Sequence x(sizes, dtype_);
    const Results whole = x.whole(DType::f64);
    for (const int runs : {1, 2, 5, 9}) {
      SCOPED_TRACE(testing::Message() << sizes.length << " tokens, " << runs << " runs");
      const Cut queries = random_cut(sizes.length, runs, seed++);
      expect_near(whole, by_blocks(x, queries, random_cut(sizes.length, runs + 1, seed), seed),
                  tolerance_);
      ++seed;
    }
  }
}

TEST_P(AttentionBlock, DocumentsMayEndOnAndBesideTheEdgesOfBlocks) {
  for (const std::vector<std::int64_t>& documents : {std::vector<std::int64_t>{64},
                                                     {63, 65},
                                                     {65, 63},
                                                     {1, 127},
                                                     {2, 126},
                                                     {137, 1, 2, 52},
                                                     {128, 127, 129},
                                                     {1, 1, 1, 2},
                                                     {384}}) {
    const Sequence x({2, 384, 2, 1, 8, documents}, dtype_);
    const Results whole = x.whole(DType::f64);
    for (const std::int64_t run : {32, 64, 96, 128}) {
      SCOPED_TRACE(testing::Message() << documents.size() << " documents from " << documents[0]
                                      << ", runs of " << run);
      expect_near(whole, by_blocks(x, even_cut(384, run), even_cut(384, run), 7), tolerance_);
    }
  }
}

TEST_P(AttentionBlock, WindowsMayBeginAnywhereInBlocks) {
  for (const std::int64_t window : {2, 63, 64, 65, 300}) {
    for (const bool has_documents : {false, true}) {
      SequenceSizes sizes{2, 384, 2, 1, 8, {}, window};
      if (has_documents) sizes.documents = {137, 1, 2, 52};
      const Sequence x(sizes, dtype_);
      const Results whole = x.whole(DType::f64);
      for (const std::int64_t run : {32, 128}) {
        SCOPED_TRACE(testing::Message() << "a window of " << window << ", runs of " << run);
        expect_near(whole, by_blocks(x, even_cut(384, run), even_cut(384, 384 - run), 7),
                    tolerance_);
      }
    }
  }
}

TEST_P(AttentionBlock, TokensMayBeDealtOutToRanks) {
  const std::int64_t ranks = 3, batch = 2, heads = 4, own = 50, length = ranks * own;
  Stream stream(2);
  const Sequence x({batch, length, heads, 2, 16, {1, 2, 77, 30}}, dtype_);
  const Results whole = x.whole(DType::f64);
  const auto dealt = [&](const Tensor& t, std::int64_t rank) {
    return t.view({batch, own, ranks, t.size(2), t.size(3)}).select(2, rank);
  };
  // The last dimension cannot be strided: statistics of a rank are taken out and put back.
  const auto take = [&](const Tensor& from, std::int64_t rank) {
    const Tensor t = empty({from.count() / length, own}, from.dtype());
    for (std::int64_t i = 0; i < t.count(); ++i) {
      const std::int64_t at = i / own * length + i % own * ranks + rank;
      if (from.dtype() == DType::i32) {
        t.data<std::int32_t>()[i] = from.data<std::int32_t>()[at];
      } else {
        put(t, i, get(from, at));
      }
    }
    return t;
  };
  Results r = x.empty_results(dtype_);
  for (const Tensor* t : {&r.dq, &r.dk, &r.dv}) std::memset(t->bytes(), 0, t->size_bytes());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const Tensor first_key = take(x.first_key, rank);
    const Tensor lse = empty({batch, heads, own}, dtype_), delta = empty(lse.shape(), dtype_);
    const auto mask = [&](std::int64_t other) {
      return AttentionMask{
          .query_offset = rank, .first_key_BS = first_key, .key_offset = other, .step = ranks};
    };
    for (std::int64_t other = 0; other < ranks; ++other) {
      attention_block_forward(dealt(x.q, rank), dealt(x.k, other), dealt(x.v, other), mask(other),
                              x.scale, other == 0 ? KeyBlock::first : KeyBlock::further,
                              dealt(r.out, rank), lse, stream);
    }
    expect_near(take(whole.lse, rank), lse, tolerance_, "lse");
    attention_delta(dealt(x.dout, rank), dealt(r.out, rank), delta, stream);
    for (std::int64_t other = 0; other < ranks; ++other) {
      attention_block_backward(dealt(x.dout, rank), dealt(x.q, rank), dealt(x.k, other),
                               dealt(x.v, other), lse, delta, mask(other), x.scale,
                               dealt(r.dq, rank), dealt(r.dk, other), dealt(r.dv, other), stream);
    }
  }
  expect_near(whole.out, r.out, tolerance_, "out");
  expect_near(whole.dq, r.dq, tolerance_, "dq");
  expect_near(whole.dk, r.dk, tolerance_, "dk");
  expect_near(whole.dv, r.dv, tolerance_, "dv");
}

TEST_P(AttentionBlock, QueriesBehindAllKeysSeeAllOfThem) {
  // Every row equals the one query that whole attention lets see all keys: the last.
  const Sequence x({1, 90, 2, 1, 16}, dtype_);
  Stream stream(1);
  const Results whole = x.whole(dtype_);
  const Tensor last = empty(x.q.shape(), dtype_), out = empty(x.q.shape(), dtype_);
  for (std::int64_t s = 0; s < 90; ++s) {
    set(last.slice(1, s, s + 1), values(x.q.slice(1, 89, 90)));
  }
  const AttentionMask mask{.query_offset = 500, .first_key_BS = {}};
  attention_block_forward(last, x.k, x.v, mask, x.scale, KeyBlock::first, out,
                          empty({1, 2, 90}, dtype_), stream);
  for (std::int64_t s = 0; s < 90; ++s) {
    expect_near(whole.out.slice(1, 89, 90), out.slice(1, s, s + 1), tolerance_, "out");
  }
}

TEST_P(AttentionBlock, NoKeysGiveNothingAndLeaveWhatThereIs) {
  const Sequence x({2, 80, 4, 2, 12, {30, 50}}, dtype_);
  Stream stream(2);
  const Results whole = x.whole(dtype_);
  const auto add = [&](std::int64_t begin, std::int64_t end, std::int64_t key_begin,
                       std::int64_t key_end, KeyBlock block, const Results& r) {
    const auto keys = [&](const Tensor& t) { return t.slice(1, key_begin, key_end); };
    const auto queries = [&](const Tensor& t) { return t.slice(1, begin, end); };
    const Tensor lse = r.lse.slice(2, begin, end), delta = empty(lse.shape(), dtype_);
    const AttentionMask mask = x.mask(begin, end, key_begin);
    attention_block_forward(queries(x.q), keys(x.k), keys(x.v), mask, x.scale, block,
                            queries(r.out), lse, stream);
    attention_delta(queries(x.dout), queries(r.out), delta, stream);
    attention_block_backward(queries(x.dout), queries(x.q), keys(x.k), keys(x.v), lse, delta, mask,
                             x.scale, queries(r.dq), keys(r.dk), keys(r.dv), stream);
  };
  struct Block {
    std::int64_t begin, end, key_begin, key_end;
  };
  // No keys; keys behind all queries; keys of another document (in both batches); no queries.
  for (const Block& block :
       {Block{0, 80, 40, 40}, Block{0, 30, 40, 70}, Block{50, 80, 0, 30}, Block{20, 20, 0, 30}}) {
    Results r = x.empty_results(dtype_);
    for (const Tensor* t : {&r.out, &r.lse, &r.dq, &r.dk, &r.dv}) {
      set(*t, std::vector<double>(static_cast<std::size_t>(t->count()), 0.25));
    }
    add(block.begin, block.end, block.key_begin, block.key_end, KeyBlock::first, r);
    for (const double value : values(r.out.slice(1, block.begin, block.end))) EXPECT_EQ(value, 0);
    for (const double value : values(r.lse.slice(2, block.begin, block.end))) {
      EXPECT_EQ(value, -kInfinity);
    }
    for (const Tensor* t : {&r.dq, &r.dk, &r.dv}) {
      for (const double value : values(*t)) EXPECT_EQ(value, 0.25);
    }
    Results kept{copy_of(whole.out), copy_of(whole.lse), copy_of(whole.dq), copy_of(whole.dk),
                 copy_of(whole.dv)};
    add(block.begin, block.end, block.key_begin, block.key_end, KeyBlock::further, kept);
    expect_same_bits(whole.out, kept.out);
    expect_same_bits(whole.lse, kept.lse);
    expect_same_bits(whole.dq, kept.dq);
    expect_same_bits(whole.dk, kept.dk);
    expect_same_bits(whole.dv, kept.dv);
  }
}

TEST_P(AttentionBlock, RowsThatSeeNoneOfAFurtherBlockKeepTheirBits) {
  const Sequence x({1, 100, 2, 1, 16, {40, 60}}, dtype_);
  Stream stream(1);
  const Results whole = x.whole(dtype_);
  const Tensor out = copy_of(whole.out), lse = copy_of(whole.lse);
  // Rows 50 to 99 see keys of [50, 70), the others are before them.
  attention_block_forward(x.q, x.k.slice(1, 50, 70), x.v.slice(1, 50, 70), x.mask(0, 100, 50),
                          x.scale, KeyBlock::further, out, lse, stream);
  const std::vector<double> before = values(whole.out), after = values(out);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const bool sees = i / (2 * 16) >= 50;
    EXPECT_EQ(before[i] == after[i], !sees) << "element " << i;
  }
}

TEST_P(AttentionBlock, PartsComputedApartMergeInAnyOrder) {
  const Sequence x({2, 150, 2, 1, 8, {1, 2, 100}}, dtype_);
  Stream stream(2);
  const Results whole = x.whole(DType::f64);
  const Cut keys{0, 1, 40, 40, 129, 150};  // the third part is empty
  std::vector<Results> parts;
  for (std::size_t j = 0; j + 1 < keys.size(); ++j) {
    parts.push_back(x.empty_results(dtype_));
    attention_block_forward(x.q, x.k.slice(1, keys[j], keys[j + 1]),
                            x.v.slice(1, keys[j], keys[j + 1]), x.mask(0, 150, keys[j]), x.scale,
                            KeyBlock::first, parts[j].out, parts[j].lse, stream);
  }
  std::vector<std::size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0U);
  do {
    const Tensor out = copy_of(parts[order[0]].out), lse = copy_of(parts[order[0]].lse);
    for (std::size_t i = 1; i < order.size(); ++i) {
      attention_merge(parts[order[i]].out, parts[order[i]].lse, out, lse, stream);
    }
    expect_near(whole.out, out, tolerance_, "out");
    expect_near(whole.lse, lse, tolerance_, "lse");
  } while (std::ranges::next_permutation(order).found);
}

TEST_P(AttentionBlock, StandsLogitsOf10000) {
  // Logits from -10,000 to 10,000, some 100 apart: merging must not overflow, nor lose the one key
  // that counts. f32 rounds an lse of 10,000 by 10^-3, which gradients of whole attention show too,
  // so blocks are held against whole attention of the same type.
  Sequence x({1, 200, 2, 1, 64, {150, 50}}, dtype_, 0.1);
  for (std::int64_t s = 0; s < 200; ++s) {
    for (std::int64_t h = 0; h < 2; ++h) put(x.q, (s * 2 + h) * 64, s % 2 == 0 ? 800 : -800);
    const auto level =
        static_cast<double>(random_permutation(9, static_cast<std::uint64_t>(s), 200));
    put(x.k, s * 64, level - 100);
  }
  const Results whole = x.whole(dtype_);
  double largest = 0;
  for (const double value : values(whole.lse)) largest = std::max(largest, std::abs(value));
  ASSERT_GT(largest, 9.9e3);
  for (const std::int64_t run : {16, 64, 100}) {
    expect_near(whole, by_blocks(x, even_cut(200, run), even_cut(200, run), 3), tolerance_);
  }
}

TEST_P(AttentionBlock, LogitsOf10000ThatAreNearEachOtherAreAsGoodAsTheirLse) {
  // Random logits of some 10,000: where two in different blocks are near each other, the merge sees
  // how f32 and f64 round an lse.
  const Sequence x({1, 200, 2, 1, 64, {150, 50}}, dtype_, 100);
  const Results whole = x.whole(dtype_);
  const double rounding = dtype_ == DType::f32 ? 1e-3 : 1e-11;
  for (const std::int64_t run : {16, 64, 100}) {
    expect_near(whole, by_blocks(x, even_cut(200, run), even_cut(200, run), 3), rounding);
  }
}

TEST_P(AttentionBlock, MergesResultsWhoseSumsAreWorldsApart) {
  Stream stream(1);
  const auto row = [&](double value) {
    const Tensor t = empty({1, 1, 1, 5}, dtype_);
    set(t, std::vector<double>(5, value));
    return t;
  };
  const auto statistic = [&](double value) {
    const Tensor t = empty({1, 1, 1}, dtype_);
    put(t, 0, value);
    return t;
  };
  const double far[] = {1e4, -1e4, -kInfinity, 3e38, -3e38};
  for (const double a : far) {
    for (const double b : far) {
      if (a == b) continue;
      const Tensor out = row(2), lse = statistic(a);
      attention_merge(row(7), statistic(b), out, lse, stream);
      EXPECT_EQ(values(out), std::vector<double>(5, a > b ? 2 : 7)) << a << " and " << b;
      EXPECT_EQ(get(lse, 0), get(statistic(std::max(a, b)), 0)) << a << " and " << b;
    }
  }
  const Tensor out = row(2), lse = statistic(1e4);
  attention_merge(row(6), statistic(1e4), out, lse, stream);
  EXPECT_EQ(values(out), std::vector<double>(5, 4));
  EXPECT_NEAR(get(lse, 0), 1e4 + std::log(2.0), dtype_ == DType::f32 ? 1e-3 : 1e-11);
}

TEST_P(AttentionBlock, EqualLogitsOver64KKeysGiveTheMean) {
  // 65,536 keys that four queries behind them see alike. Values are multiples of 1/64, so that sums
  // are exact, and the mean is what comes out: to the last digits, with any cut.
  const std::int64_t keys = 65536, queries = 4, heads = 2, width = 8;
  Stream stream(2);
  const Tensor q = empty({1, queries, heads, width}, dtype_), dout = copy_of(q);
  set(q, std::vector<double>(static_cast<std::size_t>(q.count()), 0.0));
  set(dout, values(random_tensor(q.shape(), DType::f32, 5)));
  const Tensor k = cast_to(dtype_, random_tensor({1, keys, 1, width}, DType::f32, 6));
  const Tensor v = empty(k.shape(), dtype_);
  std::vector<double> mean(static_cast<std::size_t>(width), 0.0);
  for (std::int64_t i = 0; i < v.count(); ++i) {
    const double value = static_cast<double>(below(129, 8, static_cast<std::uint64_t>(i))) / 64;
    put(v, i, value);
    mean[static_cast<std::size_t>(i % width)] += value / static_cast<double>(keys);
  }
  const Tensor out = empty(q.shape(), dtype_), lse = empty({1, heads, queries}, dtype_);
  const Tensor delta = empty(lse.shape(), dtype_), dq = copy_of(q), dk = empty(k.shape(), dtype_);
  const Tensor dv = empty(k.shape(), dtype_);
  for (const Tensor* t : {&dk, &dv}) std::memset(t->bytes(), 0, t->size_bytes());
  const Cut cut{0, 1, 4096, 20000, 20000, 20063, 65535, 65536};
  const auto mask = [&](std::size_t j) {
    return AttentionMask{.query_offset = keys, .first_key_BS = {}, .key_offset = cut[j]};
  };
  const auto of = [&](const Tensor& t, std::size_t j) { return t.slice(1, cut[j], cut[j + 1]); };
  for (std::size_t j = 0; j + 1 < cut.size(); ++j) {
    attention_block_forward(q, of(k, j), of(v, j), mask(j), 1.0,
                            j == 0 ? KeyBlock::first : KeyBlock::further, out, lse, stream);
  }
  const double exact = dtype_ == DType::f32 ? 2e-6 : 1e-14;
  for (std::int64_t i = 0; i < out.count(); ++i) {
    EXPECT_NEAR(get(out, i), mean[static_cast<std::size_t>(i % width)], exact);
  }
  for (const double value : values(lse)) {
    EXPECT_NEAR(value, std::log(static_cast<double>(keys)), 4 * exact);
  }
  attention_delta(dout, out, delta, stream);
  for (std::size_t j = 0; j + 1 < cut.size(); ++j) {
    attention_block_backward(dout, q, of(k, j), of(v, j), lse, delta, mask(j), 1.0, dq, of(dk, j),
                             of(dv, j), stream);
  }
  // With p = 1/n: dv = sum of dout / n, dq = sum of (dout . (v - mean)) k / n, dk = 0 since q is 0.
  const auto n = static_cast<double>(keys);
  Tensor want_dv = empty(dv.shape(), DType::f64), want_dq = empty(dq.shape(), DType::f64);
  std::vector<double> sum(static_cast<std::size_t>(width), 0.0);
  for (std::int64_t i = 0; i < dout.count(); ++i) {
    sum[static_cast<std::size_t>(i % width)] += get(dout, i) / n;
  }
  for (std::int64_t i = 0; i < dv.count(); ++i) {
    put(want_dv, i, sum[static_cast<std::size_t>(i % width)]);
  }
  for (std::int64_t row = 0; row < queries * heads; ++row) {
    std::vector<double> gradient(static_cast<std::size_t>(width), 0.0);
    for (std::int64_t j = 0; j < keys; ++j) {
      double slope = 0;
      for (std::int64_t d = 0; d < width; ++d) {
        slope += get(dout, row * width + d) *
                 (get(v, j * width + d) - mean[static_cast<std::size_t>(d)]);
      }
      for (std::int64_t d = 0; d < width; ++d) {
        gradient[static_cast<std::size_t>(d)] += slope * get(k, j * width + d) / n;
      }
    }
    for (std::int64_t d = 0; d < width; ++d) {
      put(want_dq, row * width + d, gradient[static_cast<std::size_t>(d)]);
    }
  }
  expect_near(want_dv, dv, tolerance_, "dv");
  // A sum of 65,536 terms that cancel.
  expect_near(want_dq, dq, 100 * tolerance_, "dq");
  for (const double value : values(dk)) EXPECT_EQ(value, 0);
}

TEST_P(AttentionBlock, ShowsNotANumberAfterFurtherBlocks) {
  const Sequence x({1, 130, 1, 1, 16}, dtype_);
  put(x.k, 3 * 16, std::numeric_limits<double>::quiet_NaN());
  const Results r = by_blocks(x, {0, 130}, {0, 20, 90, 130}, 5);
  EXPECT_TRUE(std::isfinite(get(r.out, 2 * 16)));
  EXPECT_TRUE(std::isnan(get(r.out, 3 * 16)));
  EXPECT_TRUE(std::isnan(get(r.out, 129 * 16)));
}

TEST_P(AttentionBlock, IsTheSameToTheBitOnAnyNumberOfThreads) {
  for (const SequenceSizes& sizes :
       {SequenceSizes{1, 300, 4, 1, 32, {130, 1, 90}}, SequenceSizes{3, 140, 4, 2, 16}}) {
    const Sequence x(sizes, dtype_);
    const Cut cut = random_cut(sizes.length, 4, 9);
    const Results one = by_blocks(x, cut, cut, 4, 1);
    for (const int threads : {2, 3, 7}) {
      const Results more = by_blocks(x, cut, cut, 4, threads);
      expect_same_bits(one.out, more.out);
      expect_same_bits(one.lse, more.lse);
      expect_same_bits(one.dq, more.dq);
      expect_same_bits(one.dk, more.dk);
      expect_same_bits(one.dv, more.dv);
    }
  }
}

TEST_P(AttentionBlock, OneBlockOfAllGivesTheBitsOfTheWhole) {
  const Sequence x({2, 200, 4, 2, 32, {1, 2, 137}}, dtype_);
  const Results whole = x.whole(dtype_), block = by_blocks(x, {0, 200}, {0, 200}, 1);
  expect_same_bits(whole.out, block.out);
  expect_same_bits(whole.lse, block.lse);
  expect_same_bits(whole.dq, block.dq);
  expect_same_bits(whole.dk, block.dk);
  expect_same_bits(whole.dv, block.dv);
}

}  // namespace
}  // namespace heddle::ops
