#pragma once

#include <memory>
#include <optional>

#include "model/rope_tables.h"
#include "nn/activation.h"
#include "nn/attention.h"
#include "nn/experts/experts.h"
#include "nn/fused_layers.h"
#include "nn/layer_testing.h"
#include "nn/linear.h"
#include "nn/norm.h"

namespace heddle {

// Small layers of every kind, each with parameters of its own.

inline std::unique_ptr<Linear> linear(std::int64_t out, std::int64_t in, bool has_bias = false) {
  return std::make_unique<Linear>(parameter("w", {out, in}),
                                  has_bias ? parameter("b", {out}) : nullptr);
}

inline std::unique_ptr<Linear> in_out_linear(std::int64_t out, std::int64_t in, bool has_bias) {
  return std::make_unique<Linear>(parameter("w", {in, out}),
                                  has_bias ? parameter("b", {out}) : nullptr,
                                  Linear::Storage::in_out);
}

inline std::unique_ptr<RmsNorm> rms_norm(std::int64_t width) {
  return std::make_unique<RmsNorm>(parameter("w", {width}), 1e-5);
}

inline std::unique_ptr<LayerNorm> layer_norm(std::int64_t width) {
  return std::make_unique<LayerNorm>(parameter("w", {width}), parameter("b", {width}), 1e-5);
}

inline std::unique_ptr<SwiGlu> swiglu(std::int64_t width) {
  return std::make_unique<SwiGlu>(width);
}

inline std::unique_ptr<GeluLayer> gelu(std::int64_t width) {
  return std::make_unique<GeluLayer>(width, ops::Gelu::tanh);
}

inline std::unique_ptr<PrepareQkv> prepare_qkv(const AttentionShape& shape, Memory& memory,
                                               std::int64_t rotated = 0, bool qk_norm = false,
                                               bool joins_heads = false) {
  std::optional<RopeSpec> rope;
  if (rotated > 0) rope = RopeSpec{.theta = 50.0, .dims = rotated};
  QkNorm norms;
  if (qk_norm) {
    const auto weight = [&](const char* name, std::int64_t heads) {
      return parameter(name, {(joins_heads ? heads : 1) * shape.head_dim});
    };
    norms = {weight("q", shape.heads), weight("k", shape.kv_heads), 1e-6, joins_heads};
  }
  return std::make_unique<PrepareQkv>(shape, make_rope_tables(rope, kSeqLen, DType::f64, memory), 0,
                                      std::move(norms));
}

inline std::unique_ptr<CausalAttention> causal_attention(const AttentionShape& shape) {
  return std::make_unique<CausalAttention>(shape, 0.6, 0);
}

/// Both in one.
inline std::unique_ptr<AttentionCore> attention(const AttentionShape& shape, Memory& memory,
                                                std::int64_t rotated = 0, bool qk_norm = false,
                                                bool joins_heads = false) {
  return std::make_unique<AttentionCore>(prepare_qkv(shape, memory, rotated, qk_norm, joins_heads),
                                         causal_attention(shape));
}

/// Six experts of width 5.
inline std::unique_ptr<Experts> experts(std::int64_t width, const Router::Options& options,
                                        bool has_shared = false) {
  constexpr std::int64_t kExperts = 6, kWidth = 5;
  std::unique_ptr<Mlp> shared;
  if (has_shared) shared = std::make_unique<Mlp>(linear(8, width), swiglu(4), linear(width, 4));
  return std::make_unique<Experts>(
      std::make_unique<Router>(parameter("router", {kExperts, width}), options),
      Experts::Weights{.up = parameter("up", {kExperts * 2 * kWidth, width}),
                       .down = parameter("down", {kExperts * width, kWidth})},
      std::move(shared));
}

/// The same with a router by cosines of projections of width 4.
inline std::unique_ptr<Experts> cosine_experts(std::int64_t width) {
  constexpr std::int64_t kExperts = 6, kWidth = 5, kInner = 4;
  auto logits = std::make_unique<CosineLogits>(
      CosineLogits::Parameters{.projection = parameter("projection", {kInner, width}),
                               .bias = parameter("bias", {kInner}),
                               .rows = parameter("rows", {kExperts, kInner}),
                               .warmth = parameter("warmth", {1})});
  return std::make_unique<Experts>(
      std::make_unique<Router>(std::move(logits), Router::Options{.per_token = 2}),
      Experts::Weights{.up = parameter("up", {kExperts * 2 * kWidth, width}),
                       .down = parameter("down", {kExperts * width, kWidth})});
}

// Branches of blocks, unfused.

inline Layers swiglu_branch(std::int64_t width) {
  return layers(rms_norm(width), linear(10, width), swiglu(5), linear(width, 5));
}

inline Layers gelu_branch(std::int64_t width) {
  return layers(layer_norm(width), in_out_linear(7, width, true), gelu(7),
                in_out_linear(width, 7, true));
}

inline Layers attention_branch(std::int64_t width, Memory& memory) {
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 4};
  return layers(layer_norm(width), linear(shape.qkv_width(), width, true),
                prepare_qkv(shape, memory, 4), causal_attention(shape), linear(width, 8, true));
}

}  // namespace heddle
