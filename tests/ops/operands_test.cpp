// What operations refuse on every device. The stream is dry: no backend is there to refuse for
// itself.

#include "ops/operands.h"

#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/norm.h"
#include "ops/op_testing.h"
#include "ops/rope.h"
#include "ops/softmax_xent.h"
#include "ops/split_vocabulary.h"

namespace heddle::ops {
namespace {

constexpr DType kF32 = DType::f32, kF64 = DType::f64, kBf16 = DType::bf16, kI32 = DType::i32;

class Operands : public testing::Test {
 protected:
  Stream stream = Stream::dry();
};

TEST_F(Operands, ProductsFitTheirFactors) {
  const auto product = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    gemm(a, Transpose::no, b, Transpose::no, c, {}, stream);
  };
  const Tensor a = empty({2, 3}, kBf16), b = empty({3, 4}, kBf16);
  EXPECT_NO_THROW(product(a, b, empty({2, 4}, kBf16)));
  EXPECT_NO_THROW(product(a, b, empty({2, 4}, kF32)));
  EXPECT_THROW(product(a, b, empty({2, 4}, kF64)), Error);
  EXPECT_THROW(product(a, b, empty({2, 5}, kBf16)), Error);
  EXPECT_THROW(product(a, empty({3, 4}, kF32), empty({2, 4}, kF32)), Error);
  EXPECT_THROW(product(a, empty({2, 4}, kBf16), empty({2, 4}, kBf16)), Error);
}

TEST_F(Operands, WhatIsAddedToAProductFitsTheResult) {
  const Tensor a = empty({2, 3}, kF32), b = empty({3, 4}, kF32), c = empty({2, 4}, kF32);
  const auto product = [&](const Tensor& bias, const Tensor& addend) {
    gemm_add(a, Transpose::no, b, Transpose::no, bias, addend, c, stream);
  };
  EXPECT_NO_THROW(product({}, {}));
  EXPECT_NO_THROW(product(empty({4}, kF32), empty({2, 4}, kF32)));
  EXPECT_THROW(product(empty({2}, kF32), {}), Error);
  EXPECT_THROW(product(empty({4}, kF64), {}), Error);
  EXPECT_THROW(product({}, empty({4, 2}, kF32)), Error);
}

TEST_F(Operands, SwigluHasTwiceTheWidth) {
  const Tensor x = empty({5, 3}, kF32), w = empty({8, 3}, kF32), both = empty({5, 8}, kF32);
  EXPECT_NO_THROW(gemm_swiglu(x, w, both, empty({5, 4}, kF32), stream));
  EXPECT_THROW(gemm_swiglu(x, w, both, empty({5, 8}, kF32), stream), Error);
  const Tensor y = empty({5, 4}, kF32), v = empty({3, 4}, kF32), dout = empty({5, 3}, kF32);
  EXPECT_NO_THROW(gemm_swiglu_backward(dout, v, y, both, both, y, stream));
  const Tensor longer = empty({6, 8}, kF32), longer_y = empty({6, 4}, kF32);
  EXPECT_THROW(gemm_swiglu_backward(dout, v, y, longer, both, longer_y, stream), Error);
  EXPECT_THROW(gemm_swiglu_backward(dout, v, y, both, longer, y, stream), Error);
}

TEST_F(Operands, AttentionHasHeadsInGroupsAndRowsOfStatistics) {
  const Tensor q = empty({2, 5, 4, 8}, kBf16), k = empty({2, 5, 2, 8}, kBf16);
  const Tensor lse = empty({2, 4, 5}, kF32);
  const auto forward = [&](const Tensor& key, const Tensor& value, const AttentionMask& mask,
                           const Tensor& statistics) {
    attention_forward(q, key, value, mask, 1.0, q, statistics, stream);
  };
  EXPECT_NO_THROW(forward(k, k, {}, lse));
  EXPECT_NO_THROW(forward(k, k, {.query_offset = 0, .first_key_BS = empty({2, 5}, kI32)}, lse));
  const Tensor three = empty({2, 5, 3, 8}, kBf16), longer = empty({2, 6, 2, 8}, kBf16);
  EXPECT_THROW(forward(three, three, {}, lse), Error);
  EXPECT_THROW(forward(k, longer, {}, lse), Error);
  EXPECT_THROW(forward(k, k, {.query_offset = 1, .first_key_BS = {}}, lse), Error);
  EXPECT_THROW(forward(k, k, {.query_offset = 0, .first_key_BS = empty({5, 2}, kI32)}, lse), Error);
  EXPECT_THROW(forward(k, k, {}, empty({2, 4, 5}, kBf16)), Error);
  EXPECT_THROW(forward(k, k, {}, empty({2, 5, 4}, kF32)), Error);

  const auto backward = [&](const Tensor& key, const Tensor& dkey) {
    attention_backward(q, q, key, key, q, lse, {}, 1.0, q, dkey, dkey, lse, stream);
  };
  EXPECT_NO_THROW(backward(k, k));
  EXPECT_THROW(backward(k, longer), Error);
  EXPECT_THROW(backward(longer, longer), Error);  // keys that no query of these is at
  const Tensor strided = empty({2, 4, 6}, kF32).slice(2, 0, 5);
  EXPECT_THROW(attention_backward(q, q, k, k, q, lse, {}, 1.0, q, k, k, strided, stream), Error);
}

TEST_F(Operands, AttentionOfWholeSequencesHasAllKeysInOrder) {
  const Tensor q = empty({2, 5, 4, 8}, kBf16), k = empty({2, 5, 2, 8}, kBf16);
  const Tensor lse = empty({2, 4, 5}, kF32);
  const auto forward = [&](const AttentionMask& mask) {
    attention_forward(q, k, k, mask, 1.0, q, lse, stream);
  };
  EXPECT_THROW(forward({.query_offset = 0, .first_key_BS = {}, .key_offset = 1}), Error);
  EXPECT_THROW(forward({.query_offset = 0, .first_key_BS = {}, .step = 2}), Error);
}

TEST_F(Operands, AttentionOnBlocksAddsUpInWideTypesAndTakesAnyKeys) {
  const Tensor q = empty({2, 5, 4, 8}, kBf16), k = empty({2, 7, 2, 8}, kBf16);
  const Tensor wide_q = empty({2, 5, 4, 8}, kF32), wide_k = empty({2, 7, 2, 8}, kF32);
  const Tensor lse = empty({2, 4, 9}, kF32).slice(2, 2, 7);  // strided
  const auto forward = [&](const AttentionMask& mask, const Tensor& out) {
    attention_block_forward(q, k, k, mask, 1.0, KeyBlock::further, out, lse, stream);
  };
  EXPECT_NO_THROW(forward({}, wide_q));
  EXPECT_NO_THROW(forward({.query_offset = 3, .first_key_BS = {}, .key_offset = 90}, wide_q));
  EXPECT_THROW(forward({}, q), Error);
  EXPECT_THROW(forward({}, wide_k), Error);
  EXPECT_THROW(forward({.query_offset = 0, .first_key_BS = {}, .step = 0}, wide_q), Error);
  EXPECT_THROW(forward({.query_offset = -1, .first_key_BS = {}}, wide_q), Error);
  EXPECT_THROW(forward({.query_offset = 0, .first_key_BS = empty({2, 7}, kI32)}, wide_q), Error);

  EXPECT_NO_THROW(attention_merge(wide_q, lse, wide_q, lse, stream));
  EXPECT_THROW(attention_merge(q, lse, q, lse, stream), Error);
  EXPECT_THROW(attention_merge(wide_k, lse, wide_q, lse, stream), Error);
  EXPECT_NO_THROW(attention_delta(q, wide_q, lse, stream));
  EXPECT_NO_THROW(attention_delta(q, q, lse, stream));
  EXPECT_THROW(attention_delta(wide_q, q, lse, stream), Error);

  const auto backward = [&](const Tensor& dq, const Tensor& dk) {
    attention_block_backward(q, q, k, k, lse, lse, {}, 1.0, dq, dk, dk, stream);
  };
  EXPECT_NO_THROW(backward(wide_q, wide_k));
  EXPECT_THROW(backward(q, wide_k), Error);
  EXPECT_THROW(backward(wide_q, k), Error);
}

TEST_F(Operands, NormsHaveWideStatisticsAndGradients) {
  const Tensor x = empty({2, 3, 8}, kBf16), w = empty({8}, kBf16), rstd = empty({6}, kF32);
  EXPECT_NO_THROW(rms_norm_backward(x, x, w, rstd, {}, x, empty({8}, kF32), stream));
  EXPECT_THROW(rms_norm_backward(x, x, w, rstd, {}, x, empty({8}, kBf16), stream), Error);
  EXPECT_THROW(rms_norm_forward(x, w, 1e-5, x, empty({6}, kBf16), stream), Error);
  EXPECT_THROW(rms_norm_forward(x, w, 1e-5, x, empty({2}, kF32), stream), Error);
  EXPECT_THROW(rms_norm_forward(x, empty({3}, kBf16), 1e-5, x, rstd, stream), Error);
}

TEST_F(Operands, RotationsHaveTablesAndPositions) {
  const Tensor x = empty({2, 3, 4, 8}, kBf16), positions = empty({2, 3}, kI32);
  const Tensor table = empty({16, 4}, kF32);
  EXPECT_NO_THROW(rope(x, positions, table, table, RopePairs::halves, false, stream));
  const Tensor wide = empty({16, 5}, kF32), low = empty({16, 4}, kBf16);
  EXPECT_THROW(rope(x, positions, wide, wide, RopePairs::halves, false, stream), Error);
  EXPECT_THROW(rope(x, positions, low, low, RopePairs::halves, false, stream), Error);
  EXPECT_THROW(rope(x, empty({3, 2}, kI32), table, table, RopePairs::halves, false, stream), Error);
}

TEST_F(Operands, BiasesAndEmbeddingsHaveWideGradients) {
  const Tensor y = empty({3, 8}, kBf16), ids = empty({3}, kI32);
  EXPECT_NO_THROW(add_bias(y, empty({8}, kBf16), stream));
  EXPECT_NO_THROW(bias_backward(y, empty({8}, kF32), stream));
  EXPECT_THROW(bias_backward(y, empty({8}, kBf16), stream), Error);
  EXPECT_THROW(add_bias(y, empty({3}, kBf16), stream), Error);
  EXPECT_NO_THROW(embedding_forward(ids, empty({9, 8}, kBf16), y, stream));
  EXPECT_NO_THROW(embedding_backward(ids, y, empty({9, 8}, kF32), stream));
  EXPECT_THROW(embedding_backward(ids, y, empty({9, 8}, kBf16), stream), Error);
  EXPECT_THROW(embedding_forward(empty({4}, kI32), empty({9, 8}, kBf16), y, stream), Error);
}

TEST_F(Operands, EveryRowOfLogitsHasATargetAndALoss) {
  const Tensor logits = empty({3, 8}, kF32), targets = empty({3}, kI32);
  EXPECT_NO_THROW(cross_entropy_forward(logits, targets, empty({3}, kF64), stream));
  EXPECT_THROW(cross_entropy_forward(logits, targets, empty({8}, kF64), stream), Error);
  EXPECT_THROW(cross_entropy_forward(logits, empty({2}, kI32), empty({3}, kF64), stream), Error);
  EXPECT_NO_THROW(divide_rows(logits, empty({3}, kF32), stream));
  EXPECT_THROW(divide_rows(empty({3, 2, 4}, kF32), empty({3}, kF32), stream), Error);
}

}  // namespace
}  // namespace heddle::ops
