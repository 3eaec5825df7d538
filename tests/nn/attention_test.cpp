// The two layers that attention is made of, beside what tests/nn/layers_test.cpp checks of every
// layer and tests/nn/fuse_test.cpp of every fusion.

#include "nn/attention.h"

#include <gtest/gtest.h>

#include "nn/fuse.h"
#include "nn/kv_cache.h"
#include "nn/sample_layers.h"
#include "nn/sequential.h"

namespace heddle {
namespace {

const AttentionShape kShape{.heads = 4, .kv_heads = 2, .head_dim = 6};

/// One sequence of `tokens` tokens at the positions given.
MicroBatch at_positions(const std::vector<std::int32_t>& positions, Memory& memory) {
  const auto tokens = static_cast<std::int64_t>(positions.size());
  MicroBatch batch{.ids = memory.zeros({1, tokens}, DType::i32, MemoryTag::data),
                   .targets = {},
                   .positions = memory.alloc({1, tokens}, DType::i32, MemoryTag::data),
                   .first_key = {}};
  std::ranges::copy(positions, batch.positions.host<std::int32_t>().begin());
  return batch;
}

Tensor copy_of_rows(const Tensor& x, const std::vector<std::int32_t>& rows, Memory& memory) {
  const Tensor copy =
      memory.alloc({static_cast<std::int64_t>(rows.size()), x.size(1)}, x.dtype(), MemoryTag::data);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double* const from = x.data<double>() + rows[i] * x.size(1);
    std::copy_n(from, x.size(1), copy.data<double>() + static_cast<std::int64_t>(i) * x.size(1));
  }
  return copy;
}

TEST(PrepareQkv, TreatsATokenByItsPositionWhereverItStands) {
  Memory memory;
  Stream stream(1);
  const std::vector<std::int32_t> in_order{0, 1, 2, 3, 4, 5, 6}, share{6, 1, 2, 5};
  const Tensor qkv = uniform({7, kShape.qkv_width()}, 1.0, 1, memory);
  for (const bool qk_norm : {false, true}) {
    const auto layer = prepare_qkv(kShape, memory, 6, qk_norm);
    const std::vector<Layer*> units{layer.get()};
    ParamStore store(units, DType::f64, ParamStore::Purpose::training, memory);
    for (Parameter* p : store.parameters()) std::ranges::fill(p->value.host<double>(), 0.7);
    const auto prepared = [&](const std::vector<std::int32_t>& tokens) {
      const MicroBatch batch = at_positions(tokens, memory);
      Ctx ctx{.stream = stream, .memory = memory, .batch = batch, .keep = Keep::nothing};
      Saved saved;
      return layer->forward(copy_of_rows(qkv, tokens, memory), saved, ctx);
    };
    EXPECT_EQ(values_of(prepared(share)),
              values_of(copy_of_rows(prepared(in_order), share, memory)));
  }
}

/// The outputs for tokens given in pieces to layers with a cache.
std::vector<double> decoded(Layers list, const Tensor& qkv, const std::vector<std::int64_t>& pieces,
                            Memory& memory) {
  Sequential sequence(std::move(list));
  const std::vector<Layer*> units{&sequence};
  ParamStore store(units, DType::f64, ParamStore::Purpose::training, memory);
  for (Parameter* p : store.parameters()) std::ranges::fill(p->value.host<double>(), 0.7);
  KvCache cache({.layers = 1,
                 .sequences = 1,
                 .capacity = qkv.size(0),
                 .kv_heads = kShape.kv_heads,
                 .head_dim = kShape.head_dim,
                 .dtype = DType::f64},
                memory);
  Stream stream(1);
  std::vector<double> outputs;
  std::int32_t at = 0;
  for (const std::int64_t piece : pieces) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < piece; ++i) tokens.push_back(at++);
    const MicroBatch batch = at_positions(tokens, memory);
    Ctx ctx{.stream = stream,
            .memory = memory,
            .batch = batch,
            .keep = Keep::nothing,
            .kv_cache = &cache};
    Saved saved;
    const auto out = values_of(sequence.forward(copy_of_rows(qkv, tokens, memory), saved, ctx));
    outputs.insert(outputs.end(), out.begin(), out.end());
    cache.advance(piece);
  }
  return outputs;
}

TEST(CausalAttention, DecodesTheSameInTwoLayersAsInOne) {
  Memory memory;
  const Tensor qkv = uniform({7, kShape.qkv_width()}, 1.0, 2, memory);
  for (const bool qk_norm : {false, true}) {
    const auto list = [&] {
      return layers(prepare_qkv(kShape, memory, 6, qk_norm), causal_attention(kShape));
    };
    const auto at_once = decoded(list(), qkv, {7}, memory);
    const auto in_pieces = decoded(list(), qkv, {3, 1, 1, 2}, memory);
    EXPECT_EQ(in_pieces, decoded(fuse(list()), qkv, {3, 1, 1, 2}, memory));
    ASSERT_EQ(at_once.size(), in_pieces.size());
    for (std::size_t i = 0; i < at_once.size(); ++i) EXPECT_NEAR(at_once[i], in_pieces[i], 1e-14);
  }
}

}  // namespace
}  // namespace heddle
