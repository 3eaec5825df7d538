#pragma once

#include <cmath>

#include "comm/threads/thread_world.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "parallel/sequence/context_attention.h"
#include "parallel/sequence_testing.h"

/// Attention that ranks share, with real tensors, beside that of one rank with the whole sequence.
namespace heddle {

inline AttentionShape attention_of(const ContextShape& shape) {
  return {.heads = shape.heads, .kv_heads = shape.key_heads, .head_dim = shape.head_dim};
}

/// What attention is given, of all tokens in order: [tokens, width] in f64, of numbers that f32 has
/// too.
struct AttentionInput {
  Tensor qkv, dout;
};

struct AttentionResult {
  Tensor out, dqkv;
};

inline Tensor random_rows(std::int64_t rows, std::int64_t width, const char* name, Memory& memory) {
  const Tensor made = memory.alloc({rows, width}, DType::f64, MemoryTag::workspace);
  std::uint64_t i = 0;
  for (double& x : made.host<double>()) {
    x = static_cast<float>(random_normal(rng_key(1, name), i++));
  }
  return made;
}

inline AttentionInput random_input(const ContextShape& shape, Memory& memory) {
  const AttentionShape attention = attention_of(shape);
  return {random_rows(shape.tokens, attention.qkv_width(), "qkv", memory),
          random_rows(shape.tokens, attention.out_width(), "dout", memory)};
}

/// On one rank, by the operations for whole sequences, in f64.
inline AttentionResult whole_attention(const ContextShape& shape, const AttentionInput& input,
                                       const ops::ScoreRule& rule, Memory& memory,
                                       int threads = 1) {
  Stream stream(threads);
  const AttentionShape attention = attention_of(shape);
  const std::int64_t N = shape.tokens, H = shape.heads, K = shape.head_dim;
  const auto alloc = [&](const Shape& size, DType dtype = DType::f64) {
    return memory.alloc(size, dtype, MemoryTag::workspace);
  };
  const Tensor first_key = alloc({1, N}, DType::i32);
  std::int64_t begin = 0;
  for (const std::int64_t length : shape.documents) {
    const auto own = first_key.host<std::int32_t>().subspan(static_cast<std::size_t>(begin),
                                                            static_cast<std::size_t>(length));
    std::ranges::fill(own, static_cast<std::int32_t>(begin));
    begin += length;
  }
  const MicroBatch batch{.ids = first_key, .targets = {}, .positions = {}, .first_key = first_key};
  ops::AttentionMask mask{.first_key_BS = first_key};
  if (shape.window) {
    const Tensor in_window = alloc({1, N}, DType::i32);
    ops::window_first_keys(mask, *shape.window, in_window, stream);
    mask.first_key_BS = in_window;
  }
  const AttentionResult result{alloc({N, attention.out_width()}),
                               alloc({N, attention.qkv_width()})};
  const Qkv given = split_qkv(input.qkv, attention, batch);
  const Qkv grads = split_qkv(result.dqkv, attention, batch);
  const Tensor out = result.out.view({1, N, H, K}), lse = alloc({1, H, N});
  ops::attention_forward(given.q_BSHK, given.k_BSGK, given.v_BSGK, mask, rule, out, lse, stream);
  ops::attention_backward(input.dout.view({1, N, H, K}), given.q_BSHK, given.k_BSGK, given.v_BSGK,
                          out, lse, mask, rule, grads.q_BSHK, grads.k_BSGK, grads.v_BSGK,
                          alloc({1, H, N}), stream);
  return result;
}

/// Calls visit(row of a rank's tensor, row of the whole) for the tokens of the runs, in order.
template <class Visit>
void for_each_row(const TokenRuns& tokens, const Visit& visit) {
  std::int64_t row = 0;
  for (const TokenRun& run : tokens) {
    for (std::int64_t i = 0; i < run.count; ++i) visit(row++, run.at(i));
  }
}

/// The rows of these tokens, as `dtype`.
inline Tensor rows_of(const Tensor& whole, const TokenRuns& tokens, DType dtype, Memory& memory,
                      Stream& stream) {
  const std::int64_t width = whole.size(1);
  const Tensor rows = memory.alloc({tokens_in(tokens), width}, DType::f64, MemoryTag::workspace);
  for_each_row(tokens, [&](std::int64_t row, std::int64_t token) {
    std::copy_n(whole.data<double>() + token * width, width, rows.data<double>() + row * width);
  });
  if (dtype == DType::f64) return rows;
  const Tensor narrow = memory.alloc(rows.shape(), dtype, MemoryTag::workspace);
  ops::cast(rows, narrow, stream);
  return narrow;
}

/// Puts rows of a rank where they belong among all tokens.
inline void put_rows(const Tensor& rows, const TokenRuns& tokens, const Tensor& whole) {
  const std::int64_t width = whole.size(1);
  const auto value = [&](std::int64_t i) {
    return rows.dtype() == DType::f64 ? rows.data<double>()[i]
                                      : static_cast<double>(rows.data<float>()[i]);
  };
  for_each_row(tokens, [&](std::int64_t row, std::int64_t token) {
    for (std::int64_t i = 0; i < width; ++i) {
      whole.data<double>()[token * width + i] = value(row * width + i);
    }
  });
}

/// The layer on all ranks of the shape, its results gathered; without `backward`, only `out`.
inline AttentionResult divided_attention(const ContextShape& shape, const AttentionInput& input,
                                         const ops::ScoreRule& rule, DType dtype, Memory& memory,
                                         bool backward = true) {
  const AttentionResult gathered{
      memory.alloc(input.dout.shape(), DType::f64, MemoryTag::workspace),
      backward ? memory.alloc(input.qkv.shape(), DType::f64, MemoryTag::workspace) : Tensor()};
  run_ranks(shape.ranks, [&](World& world) {
    Memory own;
    Stream stream(1);
    ContextShape common = shape;  // what layers without windows share
    common.window.reset();
    const auto windows = shape.window ? std::vector{*shape.window} : std::vector<std::int64_t>{};
    const auto context = make_rank_context(common, world.rank(), nullptr, windows);
    const TokenRuns& tokens = context->plan.held[static_cast<std::size_t>(world.rank())];
    const MicroBatch batch{.ids = own.alloc({1, tokens_in(tokens)}, DType::i32, MemoryTag::data),
                           .targets = {},
                           .positions = {},
                           .first_key = {},
                           .context = context};
    Ctx ctx{.stream = stream,
            .memory = own,
            .batch = batch,
            .keep = backward ? Keep::all : Keep::nothing};
    ContextAttention layer(attention_of(shape), rule, 0, world.all(), shape.window);
    Saved saved;
    const Tensor out = layer.forward(rows_of(input.qkv, tokens, dtype, own, stream), saved, ctx);
    put_rows(out, tokens, gathered.out);  // ranks have different tokens
    if (!backward) return;
    const Tensor dqkv =
        layer.backward_input(rows_of(input.dout, tokens, dtype, own, stream), saved, ctx);
    EXPECT_TRUE(saved.empty());
    put_rows(dqkv, tokens, gathered.dqkv);
  });
  return gathered;
}

/// EXPECTs that every row of `width` numbers is that of the other tensor, up to the tolerance times
/// its size and that of what it is summed from.
inline void expect_rows_near(const Tensor& made, const Tensor& expected, std::int64_t width,
                             double tolerance, double summands, const char* what) {
  ASSERT_EQ(made.shape(), expected.shape());
  const double* a = made.data<double>();
  const double* b = expected.data<double>();
  for (std::int64_t row = 0; row < expected.count() / width; ++row) {
    double squares = 0.0, off_squares = 0.0;
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      squares += b[i] * b[i];
      off_squares += (a[i] - b[i]) * (a[i] - b[i]);
    }
    const double size = std::sqrt(squares), off = std::sqrt(off_squares);
    // Not `off > ...`: what is not a number must not look small.
    ASSERT_TRUE(off <= tolerance * (size + summands))
        << what << ", row " << row << ": off by " << off << " of " << size;
  }
}

inline double tolerance_of(DType dtype) { return dtype == DType::f64 ? 1e-12 : 1e-5; }

/// EXPECTs out, dq, dk and dv of one rank. `largest` is the size of the largest inputs.
inline void expect_same_as_one_rank(const ContextShape& shape, const AttentionInput& input,
                                    const ops::ScoreRule& rule, double largest, DType dtype,
                                    Memory& memory) {
  SCOPED_TRACE(to_text(shape) + (dtype == DType::f64 ? " f64" : " f32"));
  const ContextShape full = resolved(shape);
  const AttentionResult whole = whole_attention(full, input, rule, memory);
  const AttentionResult made = divided_attention(full, input, rule, dtype, memory);
  expect_rows_near(made.out, whole.out, shape.head_dim, tolerance_of(dtype), 1.0, "out");
  expect_rows_near(made.dqkv, whole.dqkv, shape.head_dim, tolerance_of(dtype), largest, "dqkv");
}

inline void expect_same_as_one_rank(const ContextShape& shape, DType dtype) {
  Memory memory;
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  expect_same_as_one_rank(shape, random_input(shape, memory), scale, 1.0, dtype, memory);
}

}  // namespace heddle
