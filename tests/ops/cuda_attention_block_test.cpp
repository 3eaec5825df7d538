// Attention on blocks of a sequence on a GPU, in any cut and any order, against attention on the
// whole of it on the CPU.

#include "ops/cuda_attention_block_testing.h"
#include "ops/query_sums.h"

namespace heddle::ops {
namespace {

TEST_F(CudaAttentionBlock, AnyCutInAnyOrderEqualsTheWhole) {
  std::uint64_t seed = 10;
  for (const DType dtype : kGpuFloats) {
    for (const SequenceSizes& sizes :
         {SequenceSizes{1, 130, 2, 2, 64, {}}, SequenceSizes{2, 100, 6, 2, 20, {}},
          SequenceSizes{1, 200, 4, 1, 33, {}}, SequenceSizes{1, 70, 3, 3, 128, {}},
          SequenceSizes{1, 150, 2, 1, 200, {}}, SequenceSizes{1, 1000, 4, 2, 64, {}},
          SequenceSizes{2, 700, 3, 1, 128, {}}, SequenceSizes{1, 500, 2, 1, 96, {}},
          SequenceSizes{2, 300, 4, 2, 16, {1, 2, 137, 64, 63}},
          SequenceSizes{1, 257, 8, 1, 8, {40, 1, 1, 100}},
          SequenceSizes{2, 900, 4, 2, 64, {1, 300, 64, 333, 2}},
          SequenceSizes{1, 800, 2, 1, 128, {5, 500, 128, 90}}}) {
      const Sequence x = sequence(sizes, dtype);
      const Results want = x.whole(DType::f64);
      in_both_orders_of_sums([&] {
        for (const int runs : {1, 2, 3, 5}) {
          SCOPED_TRACE(fmt::format("{} {} tokens, K{}, {} runs, seed {}", name_of(dtype),
                                   sizes.length, sizes.width, runs, seed));
          const Cut queries = random_cut(sizes.length, runs, seed++);
          const Cut keys = random_cut(sizes.length, runs + 1, seed);
          expect_near(want, by_blocks(x, dtype, queries, keys, seed), tolerance_of(dtype));
          ++seed;
        }
      });
    }
  }
}

TEST_F(CudaAttentionBlock, DocumentsMayEndOnAndBesideTheEdgesOfBlocks) {
  for (const std::vector<std::int64_t>& documents : {std::vector<std::int64_t>{},
                                                     {64},
                                                     {63, 65},
                                                     {1, 127},
                                                     {137, 1, 2, 52},
                                                     {128, 127, 129},
                                                     {1, 1, 1, 2},
                                                     {512}}) {
    for (const std::int64_t width : {64, 128, 16}) {
      const Sequence x = sequence({2, 512, 2, 1, width, documents}, DType::bf16);
      const Results want = x.whole(DType::f64);
      in_both_orders_of_sums([&] {
        for (const std::int64_t run : {64, 96, 128, 256}) {
          SCOPED_TRACE(fmt::format("K{}, {} documents from {}, runs of {}", width, documents.size(),
                                   documents.empty() ? 0 : documents[0], run));
          expect_near(want,
                      by_blocks(x, DType::bf16, even_cut(512, run), even_cut(512, 512 - run), 7),
                      tolerance_of(DType::bf16));
        }
      });
    }
  }
}

TEST_F(CudaAttentionBlock, WindowsMayBeginAnywhereInBlocks) {
  for (const DType dtype : kGpuFloats) {
    for (const std::int64_t window : {2, 63, 64, 65, 200}) {
      for (const std::int64_t width : {64, 128, 16}) {
        const Sequence x = sequence({2, 512, 2, 1, width, {}, window}, dtype);
        const Results want = x.whole(DType::f64);
        in_both_orders_of_sums([&] {
          for (const std::int64_t run : {64, 96, 256}) {
            SCOPED_TRACE(fmt::format("{} K{}, a window of {}, runs of {}", name_of(dtype), width,
                                     window, run));
            expect_near(want, by_blocks(x, dtype, even_cut(512, run), even_cut(512, 512 - run), 7),
                        tolerance_of(dtype));
          }
        });
      }
    }
  }
}

/// Two ranks with two stretches of the sequence each, against keys in two blocks.
TEST_F(CudaAttentionBlock, QueriesMayJumpFromOneStretchToTheNext) {
  for (const DType dtype : kGpuFloats) {
    for (const std::int64_t width : {64, 128, 16}) {
      for (const Cut& cut : {Cut{0, 64, 128, 192, 256}, Cut{0, 128, 300, 640, 700},
                             Cut{0, 70, 100, 333, 400}, Cut{0, 192, 256, 257, 500}}) {
        const Sequence x = sequence({2, cut[4], 4, 2, width, {}}, dtype);
        const Results want = x.whole(DType::f64);
        in_both_orders_of_sums([&] {
          SCOPED_TRACE(fmt::format("{} K{}, {} tokens cut at {} and {}", name_of(dtype), width,
                                   cut[4], cut[1], cut[2]));
          const OnDevice d = on_device(x, dtype);
          for (const std::size_t rank : {0, 1}) jump(d, x.scale, cut, rank);
          expect_near(want, from_device(d.r), tolerance_of(dtype));
        });
      }
    }
  }
}

TEST_F(CudaAttentionBlock, GradientsOfQueriesMayStaySumsFromBlockToBlock) {
  gpu().set_deterministic(false);
  for (const std::int64_t width : {64, 128}) {
    for (const std::int64_t length : {64, 500, 1024}) {  // of 500, the last tile is a short one
      const Sequence x = sequence({1, length, 6, 2, width, {}}, DType::bf16);
      const Results want = x.whole(DType::f64);
      const OnDevice d = on_device(x, DType::bf16);
      const std::int64_t tile = query_sum_tile(d.q, gpu());
      if (tile == 0) GTEST_SKIP() << "the kernels of this GPU have no such sums";
      forward(d, x.scale, {0, length, 0, length}, KeyBlock::first);
      attention_delta(d.dout, d.r.out, d.delta, gpu());
      const Tensor sums =
          device_empty({1, 6, (length + tile - 1) / tile, tile * width}, DType::f32);
      fill(sums, 0.0, gpu());
      // Two sets of heads, two stretches of queries, three of keys: each has a slice of the sums.
      const Cut stretches{0, (length + tile - 1) / tile / 2 * tile, length};
      const Cut keys = random_cut(length, 3, static_cast<std::uint64_t>(length));
      for (const Pair& at : shuffled_pairs(stretches, keys, 5)) {
        const std::int64_t begin = stretches[at.query], end = stretches[at.query + 1];
        for (const std::int64_t half : {0, 1}) {
          const auto of_queries = [&](const Tensor& t) {
            return t.slice(1, begin, end).slice(2, 3 * half, 3 * half + 3);
          };
          const auto statistic = [&](const Tensor& t) {
            return t.slice(1, 3 * half, 3 * half + 3).slice(2, begin, end);
          };
          const auto of_keys = [&](const Tensor& t) {
            return t.slice(1, keys[at.key], keys[at.key + 1]).slice(2, half, half + 1);
          };
          attention_block_backward_to_sums(
              of_queries(d.dout), of_queries(d.q), of_keys(d.k), of_keys(d.v), statistic(d.r.lse),
              statistic(d.delta), mask(d, begin, end, keys[at.key]), x.scale,
              sums.slice(1, 3 * half, 3 * half + 3).slice(2, begin / tile, (end + tile - 1) / tile),
              of_keys(d.r.dk), of_keys(d.r.dv), gpu());
        }
      }
      SCOPED_TRACE(fmt::format("K{}, {} tokens", width, length));
      fill(d.r.dq, std::numeric_limits<double>::quiet_NaN(), gpu());
      query_grads_of_sums(sums, x.scale, QueryGrads::written, d.r.dq, gpu());
      expect_near(want, from_device(d.r), tolerance_of(DType::bf16));
      query_grads_of_sums(sums, -x.scale, QueryGrads::added, d.r.dq, gpu());
      EXPECT_EQ(largest_of(down(d.r.dq)), 0.0);
    }
  }
}

TEST_F(CudaAttentionBlock, SumsOfQueriesAreNotForSumsInOrderNorForOtherTypes) {
  const auto queries = [&](std::int64_t width, DType dtype) {
    return device_empty({1, 64, 2, width}, dtype);
  };
  gpu().set_deterministic(true);
  EXPECT_EQ(query_sum_tile(queries(128, DType::bf16), gpu()), 0);
  gpu().set_deterministic(false);
  EXPECT_EQ(query_sum_tile(queries(128, DType::f32), gpu()), 0);
  EXPECT_EQ(query_sum_tile(queries(96, DType::bf16), gpu()), 0);
}

/// Several jobs add to every row, those of heads that share keys too, and results are f32: sums
/// that an order could change would show.
TEST_F(CudaAttentionBlock, GradientsAreTheSameBitsEveryTime) {
  gpu().set_deterministic(true);
  for (const std::int64_t width : {64, 128}) {
    for (const auto& [documents, window] :
         {std::pair<std::vector<std::int64_t>, std::int64_t>{{}, 0}, {{700, 324}, 0}, {{}, 200}}) {
      SCOPED_TRACE(fmt::format("K{}, {} documents, window {}", width, documents.size(), window));
      const Sequence x = sequence({2, 1024, 12, 3, width, documents, window}, DType::bf16);
      const auto run = [&] { return by_blocks(x, DType::bf16, {0, 1024}, {0, 300, 1024}, 3); };
      const Results first = run();
      for (int again = 0; again < 10; ++again) {
        const Results next = run();
        expect_same_bits(next.dq, first.dq);
        expect_same_bits(next.dk, first.dk);
        expect_same_bits(next.dv, first.dv);
      }
    }
  }
}

TEST_F(CudaAttentionBlock, TokensMayBeDealtOutToRanks) {
  const std::int64_t ranks = 3, batch = 2, heads = 4, own = 100, length = ranks * own;
  for (const DType dtype : kGpuFloats) {
    for (const std::int64_t width : {16, 64, 128}) {
      const Sequence x = sequence({batch, length, heads, 2, width, {1, 2, 177, 60}}, dtype);
      const Results want = x.whole(DType::f64);
      const auto dealt = [&](const Tensor& t, std::int64_t rank) {
        return t.view({batch, own, ranks, t.size(2), t.size(3)}).select(2, rank);
      };
      const auto first_key = [&](std::int64_t rank) {
        const Tensor t = empty({batch, own}, DType::i32);
        for (std::int64_t i = 0; i < t.count(); ++i) {
          t.data<std::int32_t>()[i] =
              x.first_key.data<std::int32_t>()[i / own * length + i % own * ranks + rank];
        }
        return up(t);
      };
      in_both_orders_of_sums([&] {
        SCOPED_TRACE(fmt::format("{} K{}", name_of(dtype), width));
        const Tensor q = up(x.q, dtype), k = up(x.k, dtype), v = up(x.v, dtype);
        const Tensor dout = up(x.dout, dtype);
        const OnDevice d = on_device(x, dtype);
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const Tensor first = first_key(rank);
          const Tensor lse = device_unwritten({batch, heads, own}, DType::f32);
          const Tensor delta = device_unwritten(lse.shape(), DType::f32);
          const auto mask = [&](std::int64_t other) {
            return AttentionMask{
                .query_offset = rank, .first_key_BS = first, .key_offset = other, .step = ranks};
          };
          for (std::int64_t other = 0; other < ranks; ++other) {
            attention_block_forward(dealt(q, rank), dealt(k, other), dealt(v, other), mask(other),
                                    x.scale, other == 0 ? KeyBlock::first : KeyBlock::further,
                                    dealt(d.r.out, rank), lse, gpu());
          }
          attention_delta(dealt(dout, rank), dealt(d.r.out, rank), delta, gpu());
          for (std::int64_t other = 0; other < ranks; ++other) {
            attention_block_backward(dealt(dout, rank), dealt(q, rank), dealt(k, other),
                                     dealt(v, other), lse, delta, mask(other), x.scale,
                                     dealt(d.r.dq, rank), dealt(d.r.dk, other),
                                     dealt(d.r.dv, other), gpu());
          }
        }
        const double tolerance = tolerance_of(dtype);
        ops::expect_near(want.out, down(d.r.out), tolerance, "out");
        ops::expect_near(want.dq, down(d.r.dq), tolerance, "dq");
        ops::expect_near(want.dk, down(d.r.dk), tolerance, "dk");
        ops::expect_near(want.dv, down(d.r.dv), tolerance, "dv");
      });
    }
  }
}

TEST_F(CudaAttentionBlock, QueriesBehindAllKeysSeeAllOfThem) {
  // So many alike that the card does not do all of them at the same time.
  const std::int64_t batch = 3, keys = 90, queries = 1500, heads = 8, groups = 4;
  for (const DType dtype : kGpuFloats) {
    for (const std::int64_t width : {16, 64, 128}) {
      SCOPED_TRACE(fmt::format("{} K{}", name_of(dtype), width));
      const Tensor q = random({batch, 1, heads, width}, dtype, 1);
      const Tensor k = random({batch, keys, groups, width}, dtype, 2);
      const Tensor v = random(k.shape(), dtype, 3);
      const Tensor out = empty(q.shape(), DType::f64), lse = empty({batch, heads, 1}, DType::f64);
      const double scale = 1 / std::sqrt(static_cast<double>(width));
      attention_forward(q, k, v, {.query_offset = keys - 1, .first_key_BS = {}}, scale, out, lse,
                        cpu());
      const Shape shape{batch, queries, heads, width};
      const Tensor all = empty(shape, DType::f64), want = empty(shape, DType::f64);
      for (std::int64_t s = 0; s < queries; ++s) {
        copy(q, all.slice(1, s, s + 1), cpu());
        copy(out, want.slice(1, s, s + 1), cpu());
      }
      const Tensor got = device_unwritten(shape, DType::f32);
      const Tensor got_lse = device_unwritten({batch, heads, queries}, DType::f32);
      attention_block_forward(up(all, dtype), up(k, dtype), up(v, dtype),
                              {.query_offset = 500, .first_key_BS = {}}, scale, KeyBlock::first,
                              got, got_lse, gpu());
      ops::expect_near(want, down(got), tolerance_of(dtype), "out");
      const std::vector<double> want_lse = values(lse), found = values(down(got_lse));
      for (std::size_t i = 0; i < found.size(); ++i) {
        const double one = want_lse[i / static_cast<std::size_t>(queries)];
        ASSERT_NEAR(found[i], one, tolerance_of(dtype) * std::max(1.0, std::abs(one)));
      }
    }
  }
}

TEST_F(CudaAttentionBlock, NoKeysGiveNothingAndLeaveWhatThereIs) {
  for (const DType dtype : kGpuFloats) {
    for (const std::int64_t width : {12, 64, 128}) {
      const Sequence x = sequence({2, 240, 4, 2, width, {90, 150}}, dtype);
      // No keys; keys behind all queries; keys of another document (in both batches); no queries.
      for (const Block& block : {Block{0, 240, 40, 40}, Block{0, 90, 120, 210},
                                 Block{150, 240, 0, 90}, Block{20, 20, 0, 30}}) {
        in_both_orders_of_sums([&] {
          SCOPED_TRACE(fmt::format("{} K{} queries {} to {}, keys {} to {}", name_of(dtype), width,
                                   block.begin, block.end, block.key_begin, block.key_end));
          const OnDevice d = on_device(x, dtype);
          for (const Tensor* t : {&d.r.dq, &d.r.dk, &d.r.dv}) fill(*t, 0.25, gpu());
          forward(d, x.scale, block, KeyBlock::first);
          const auto queries = [&](const Tensor& t, int dim) {
            return values(down(t.slice(dim, block.begin, block.end)));
          };
          for (const double value : queries(d.r.out, 1)) EXPECT_EQ(value, 0);
          for (const double value : queries(d.r.lse, 2)) EXPECT_EQ(value, -kInfinity);
          fill(d.delta, 0.0, gpu());
          backward(d, x.scale, block);
          for (const Tensor* t : {&d.r.dq, &d.r.dk, &d.r.dv}) {
            for (const double value : values(down(*t))) EXPECT_EQ(value, 0.25);
          }
          fill(d.r.out, 3.5, gpu());
          fill(d.r.lse, -7.25, gpu());
          forward(d, x.scale, block, KeyBlock::further);
          backward(d, x.scale, block);
          for (const double value : values(down(d.r.out))) EXPECT_EQ(value, 3.5);
          for (const double value : values(down(d.r.lse))) EXPECT_EQ(value, -7.25);
          for (const Tensor* t : {&d.r.dq, &d.r.dk, &d.r.dv}) {
            for (const double value : values(down(*t))) EXPECT_EQ(value, 0.25);
          }
        });
      }
    }
  }
}

TEST_F(CudaAttentionBlock, RowsThatSeeNoneOfAFurtherBlockKeepTheirBits) {
  for (const DType dtype : kGpuFloats) {
    for (const std::int64_t width : {16, 64, 128}) {
      const Sequence x = sequence({1, 300, 2, 1, width, {140, 160}}, dtype);
      const OnDevice d = on_device(x, dtype);
      forward(d, x.scale, {0, 300, 0, 300}, KeyBlock::first);
      const std::vector<double> before = values(down(d.r.out)), lse = values(down(d.r.lse));
      // Rows 150 to 299 see keys of [150, 190), the others are before them.
      forward(d, x.scale, {0, 300, 150, 190}, KeyBlock::further);
      const std::vector<double> after = values(down(d.r.out)), lse_after = values(down(d.r.lse));
      const auto row = static_cast<std::size_t>(2 * width);
      for (std::size_t s = 0; s < 300; ++s) {
        const bool same = std::equal(before.begin() + static_cast<std::ptrdiff_t>(s * row),
                                     before.begin() + static_cast<std::ptrdiff_t>((s + 1) * row),
                                     after.begin() + static_cast<std::ptrdiff_t>(s * row));
        EXPECT_EQ(same, s < 150) << "row " << s << " of K" << width;
        EXPECT_EQ(lse[s] == lse_after[s], s < 150) << "row " << s << " of K" << width;
      }
    }
  }
}

TEST_F(CudaAttentionBlock, PartsComputedApartMergeInAnyOrder) {
  for (const DType dtype : kGpuFloats) {
    const Sequence x = sequence({2, 250, 2, 1, 64, {1, 2, 200}}, dtype);
    const Results want = x.whole(DType::f64);
    const Cut keys{0, 1, 40, 40, 229, 250};  // the third part is empty
    std::vector<Results> parts;
    for (std::size_t j = 0; j + 1 < keys.size(); ++j) {
      const OnDevice d = on_device(x, dtype);
      forward(d, x.scale, {0, 250, keys[j], keys[j + 1]}, KeyBlock::first);
      parts.push_back(d.r);
    }
    for (const bool is_backward : {false, true}) {
      const Tensor out = device_empty(x.q.shape(), DType::f32);
      const Tensor lse = device_empty(parts[0].lse.shape(), DType::f32);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const Results& part = parts[is_backward ? parts.size() - 1 - i : i];
        if (i == 0) {
          copy(part.out, out, gpu());
          copy(part.lse, lse, gpu());
        } else {
          attention_merge(part.out, part.lse, out, lse, gpu());
        }
      }
      ops::expect_near(want.out, down(out), tolerance_of(dtype), "out");
      ops::expect_near(want.lse, down(lse), tolerance_of(dtype), "lse");
    }
  }
}

TEST_F(CudaAttentionBlock, MergesResultsWhoseSumsAreWorldsApart) {
  const auto row = [&](double value) {
    const Tensor t = device_empty({1, 1, 1, 5}, DType::f32);
    fill(t, value, gpu());
    return t;
  };
  const auto statistic = [&](double value) {
    const Tensor t = device_empty({1, 1, 1}, DType::f32);
    fill(t, value, gpu());
    return t;
  };
  const double far[] = {1e4, -1e4, -kInfinity, 3e38, -3e38};
  for (const double a : far) {
    for (const double b : far) {
      const Tensor out = row(2), lse = statistic(a);
      attention_merge(row(7), statistic(b), out, lse, gpu());
      const double want = a == b && std::isfinite(a) ? 4.5 : a >= b ? 2 : 7;
      EXPECT_EQ(values(down(out)), std::vector<double>(5, want)) << a << " and " << b;
      const double largest = values(down(statistic(std::max(a, b))))[0];
      if (a == 1e4 && b == 1e4) {
        EXPECT_NEAR(values(down(lse))[0], 1e4 + std::log(2.0), 1e-3);
      } else if (a != -1e4 || b != -1e4) {
        EXPECT_EQ(values(down(lse))[0], largest) << a << " and " << b;
      }
    }
  }
}

TEST_F(CudaAttentionBlock, StandsLogitsOf10000) {
  // Logits from -10,000 to 10,000, some 100 apart: merging must not overflow, nor lose the one key
  // that counts. f32 rounds an lse of 10,000 by 10^-3, which gradients of whole attention show too.
  // Where a row has but one key, gradients of its scores cancel: with probabilities in bf16 those
  // of q and k are as near to 0 as the terms are large.
  for (const DType dtype : kGpuFloats) {
    for (const std::int64_t width : {64, 128}) {
      Sequence x({1, 200, 2, 1, width, {150, 50}}, DType::f64, 0.1);
      x.scale = 0.125;
      for (std::int64_t s = 0; s < 200; ++s) {
        for (std::int64_t h = 0; h < 2; ++h) put(x.q, (s * 2 + h) * width, s % 2 == 0 ? 800 : -800);
        const auto level =
            static_cast<double>(random_permutation(9, static_cast<std::uint64_t>(s), 200));
        put(x.k, s * width, level - 100);
      }
      round(x, dtype);
      in_both_orders_of_sums([&] {
        const Results want = whole(x, dtype);
        ASSERT_GT(largest_of(want.lse), 9.9e3);
        for (const std::int64_t run : {16, 64, 100}) {
          SCOPED_TRACE(fmt::format("{} K{} runs of {}", name_of(dtype), width, run));
          const Results got = by_blocks(x, dtype, even_cut(200, run), even_cut(200, run), 3);
          const double tolerance = tolerance_of(dtype);
          if (dtype == DType::f32) {
            expect_near(want, got, tolerance);
            continue;
          }
          ops::expect_near(want.out, got.out, tolerance, "out");
          ops::expect_near(want.lse, got.lse, tolerance, "lse");
          ops::expect_near(want.dv, got.dv, tolerance, "dv");
          const double term = x.scale * largest_of(x.dout) * largest_of(x.v) *
                              std::sqrt(static_cast<double>(width));
          EXPECT_LE(largest_of(got.dq), tolerance * term * largest_of(x.k));
          EXPECT_LE(largest_of(got.dk), tolerance * term * largest_of(x.q) * 2 * 200);
        }
      });
    }
  }
}

TEST_F(CudaAttentionBlock, EqualLogitsOver64KKeysGiveTheMean) {
  // 65,536 keys that queries behind them see alike. Values are multiples of 1/64, exact in bf16.
  const std::int64_t keys = 65536, queries = 70, heads = 2;
  for (const DType dtype : kGpuFloats) {
    for (const std::int64_t width : {8, 64, 128}) {
      SCOPED_TRACE(fmt::format("{} K{}", name_of(dtype), width));
      const Tensor v = empty({1, keys, 1, width}, DType::f64);
      std::vector<double> mean(static_cast<std::size_t>(width), 0.0);
      for (std::int64_t i = 0; i < v.count(); ++i) {
        const double value = static_cast<double>(below(129, 8, static_cast<std::uint64_t>(i))) / 64;
        put(v, i, value);
        mean[static_cast<std::size_t>(i % width)] += value / static_cast<double>(keys);
      }
      const Tensor dev_v = up(v, dtype);
      const Tensor dev_k = up(random({1, keys, 1, width}, dtype, 6), dtype);
      const Tensor q = device_empty({1, queries, heads, width}, dtype);
      fill(q, 0.0, gpu());
      const Tensor out = device_unwritten(q.shape(), DType::f32);
      const Tensor lse = device_unwritten({1, heads, queries}, DType::f32);
      const Cut cut{0, 1, 4096, 20000, 20000, 20063, 65535, 65536};
      for (std::size_t j = 0; j + 1 < cut.size(); ++j) {
        const AttentionMask mask{.query_offset = keys, .first_key_BS = {}, .key_offset = cut[j]};
        attention_block_forward(q, dev_k.slice(1, cut[j], cut[j + 1]),
                                dev_v.slice(1, cut[j], cut[j + 1]), mask, 1.0,
                                j == 0 ? KeyBlock::first : KeyBlock::further, out, lse, gpu());
      }
      const std::vector<double> got = values(down(out));
      const double exact = dtype == DType::f32 ? 1e-5 : 2e-4;
      double worst = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        worst = std::max(worst, std::abs(got[i] - mean[i % static_cast<std::size_t>(width)]));
      }
      EXPECT_LE(worst, exact);
      for (const double value : values(down(lse))) {
        EXPECT_NEAR(value, std::log(static_cast<double>(keys)), 4 * exact);
      }
    }
  }
}

TEST_F(CudaAttentionBlock, RepeatsItselfWithSumsInOrder) {
  for (const DType dtype : kGpuFloats) {
    for (const std::int64_t width : {64, 128}) {
      const Sequence x = sequence({2, 300, 4, 2, width, {200, 100}}, dtype);
      const Cut cut{0, 70, 190, 300};
      const Results first = by_blocks(x, dtype, cut, cut, 3),
                    again = by_blocks(x, dtype, cut, cut, 3);
      expect_same_bits(first.out, again.out);
      expect_same_bits(first.lse, again.lse);
      expect_same_bits(first.dq, again.dq);
      expect_same_bits(first.dk, again.dk);
      expect_same_bits(first.dv, again.dv);
    }
  }
}

}  // namespace
}  // namespace heddle::ops
