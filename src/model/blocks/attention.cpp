#include "nn/attention.h"

#include <fmt/format.h>

#include "model/blocks/branch_kind.h"
#include "parallel/sequence/context_attention.h"

namespace heddle {
namespace {

/// The fused projection's outputs. A fused tensor that is not divided is one piece.
std::vector<BranchBuilder::Output> qkv_outputs(const ModelSpec& spec, const TensorRules& tensor) {
  using Cut = TensorRules::Cut;
  const TensorNames& names = spec.names;
  const std::int64_t hd = spec.head_dim;
  const Cut q = tensor.cut(spec.heads, hd), kv = tensor.cut(spec.kv_heads, hd);
  const std::int64_t q_width = spec.heads * hd, kv_width = spec.kv_heads * hd;
  if (names.fused_qkv.empty()) {
    return {
        {names.query, q_width, {q}}, {names.key, kv_width, {kv}}, {names.value, kv_width, {kv}}};
  }
  const std::int64_t whole = q_width + 2 * kv_width;
  if (spec.qkv_interleaved) {
    return {{names.fused_qkv, whole, {tensor.cut(spec.heads, whole / spec.heads)}}};
  }
  if (!tensor.divides()) return {{names.fused_qkv, whole, {{0, whole}}}};
  return {{names.fused_qkv,
           whole,
           {q, {q_width + kv.begin, kv.size}, {q_width + kv_width + kv.begin, kv.size}}}};
}

bool divides_key_heads(const ModelSpec& spec, std::int64_t tp) {
  return spec.kv_heads % tp == 0 || tp % spec.kv_heads == 0;
}

/// Softmax attention, with as many key heads as the family has.
class Attention final : public BranchKind {
 public:
  Layers build(const BranchBuilder& builder) const override {
    using Cut = TensorRules::Cut;
    const ModelSpec& spec = builder.spec();
    const TensorRules& tensor = builder.tensor();
    const TensorNames& names = spec.names;
    const Cut heads = tensor.cut(spec.heads, 1), kv_heads = tensor.cut(spec.kv_heads, 1);
    const AttentionShape shape{heads.size, kv_heads.size, spec.head_dim, spec.qkv_interleaved};
    QkNorm qk_norm;
    if (spec.qk_norm) {
      const auto weight = [&](const std::string& pattern, std::int64_t heads) {
        if (!spec.qk_norm_joins_heads) {
          return make_parameter(builder.named(pattern) + ".weight", {spec.head_dim},
                                builder.norm_init(), tensor.used_apart());
        }
        const Cut own = tensor.cut(heads, spec.head_dim);
        const std::int64_t whole = heads * spec.head_dim;
        auto made =
            make_parameter(builder.named(pattern) + ".weight", {own.size}, builder.norm_init(),
                           tensor.copies(heads) > 1 ? tensor.divided_keys(0) : tensor.divided(0));
        made->parts = {{builder.named(pattern) + ".weight", {whole}, {own.begin}, {0}, {own.size}}};
        return made;
      };
      qk_norm = {weight(names.query_norm, spec.heads),
                 weight(names.key_norm, spec.kv_heads),
                 spec.norm_eps,
                 spec.qk_norm_joins_heads,
                 spec.qk_norm_joins_heads ? tensor.comm() : nullptr,
                 spec.norm_adds_one};
    }
    Layers layers;
    builder.begin_branch(layers, names.attention_norm);
    tensor.enter(layers, spec.hidden);
    layers.push_back(
        builder.linear_by_output(qkv_outputs(spec, tensor), spec.qkv_bias, shape.out_width()));
    const int index = static_cast<int>(builder.block());
    layers.push_back(
        std::make_unique<PrepareQkv>(shape, builder.rope(), index, std::move(qk_norm)));
    const ops::ScoreRule rule(spec.attention_scale, spec.attention_cap);
    if (builder.context() == nullptr) {
      layers.push_back(std::make_unique<CausalAttention>(shape, rule, index, builder.window()));
    } else {
      layers.push_back(std::make_unique<ContextAttention>(shape, rule, index, *builder.context(),
                                                          builder.window()));
    }
    layers.push_back(builder.linear_by_input(
        names.attention_out, {spec.heads * spec.head_dim, tensor.cut(spec.heads, spec.head_dim)},
        spec.attention_out_bias));
    tensor.leave(layers, spec.hidden);
    builder.end_branch(layers, names.attention_post_norm);
    return layers;
  }

  std::string refuse_tp(const ModelSpec& spec, const ParallelRequest& request) const override {
    if (spec.heads % request.tp != 0) {
      return fmt::format("does not divide the model's attention heads = {}", spec.heads);
    }
    if (divides_key_heads(spec, request.tp)) return {};
    return fmt::format("neither divides the model's key heads = {} nor is a multiple",
                       spec.kv_heads);
  }
};

}  // namespace

std::unique_ptr<BranchKind> attention_kind() { return std::make_unique<Attention>(); }

}  // namespace heddle
