#pragma once

#include <memory>

#include "nn/layer.h"

namespace heddle {

/// The sizes of an attention layer and how q, k and v lie in the fused projection's output.
struct AttentionShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  /// false: [q of all heads | k | v]; true: q, k, v of head 0, then of head 1, ... (GPT-NeoX).
  bool interleaved = false;

  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t out_width() const { return heads * head_dim; }
};

/// Cosines and sines of the rotary embedding, [positions, rotary_dim / 2]; absent for models
/// without one.
struct RopeTables {
  Tensor cos_PR, sin_PR;
  bool defined() const { return cos_PR.defined(); }
};

/// What lies between the qkv projection and the output projection: norms of q and k where the model
/// has them, rotary embedding, causal attention within documents. In: [T, qkv_width]. Out: [T,
/// out_width].
class AttentionCore final : public Layer {
 public:
  struct QkNorm {
    std::shared_ptr<Parameter> q_weight, k_weight;  ///< [head_dim]
    double eps = 1e-6;
  };

  /// `tables` may be shared by layers. `index` names this layer's part of the KV cache.
  AttentionCore(const AttentionShape& shape, std::shared_ptr<const RopeTables> tables, double scale,
                int index);
  AttentionCore(const AttentionShape& shape, std::shared_ptr<const RopeTables> tables, double scale,
                int index, QkNorm qk_norm);

  Tensor forward(const Tensor& qkv, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dout, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  struct Qkv {
    Tensor q_BSHK, k_BSGK, v_BSGK;
  };
  Qkv split(const Tensor& qkv, const MicroBatch& batch) const;
  /// q and k as attention sees them. Without norms they are rotated in place; with norms they are
  /// made anew, because backward needs them before the norm too. Fills the row statistics when
  /// given.
  Qkv prepare(const Tensor& qkv, const Tensor& rstd_q, const Tensor& rstd_k, Ctx& ctx) const;
  void rotate(const Tensor& x_BSHK, bool inverse, Ctx& ctx) const;
  /// Both parts of a projection's output, or of its gradient, at once where they lie side by side.
  void rotate_q_and_k(const Tensor& qkv, bool inverse, Ctx& ctx) const;
  bool has_qk_norm() const { return qk_norm_.q_weight != nullptr; }

  enum Slot { kQkv, kOut, kLse, kRstdQ, kRstdK, kGradQ, kGradK };
  AttentionShape shape_;
  std::shared_ptr<const RopeTables> tables_;
  double scale_;
  int index_;
  QkNorm qk_norm_;
};

}  // namespace heddle
