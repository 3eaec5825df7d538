#pragma once

#include <memory>
#include <optional>

#include "nn/joint_norm.h"
#include "nn/layer.h"
#include "nn/rope_tables.h"
#include "ops/attention.h"

namespace heddle {

// Attention is two layers between the qkv projection and the output projection: what is done to
// each token alone, and what tokens do to each other. An exchange of tokens or heads between ranks
// stands between the two. Where nothing does, they become one (AttentionCore, nn/fused_layers.h).

/// The sizes of an attention layer and how q, k and v lie in the fused projection's output.
struct AttentionShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  /// false: [q of all heads | k | v]; true: q, k, v of head 0, then of head 1, ... (GPT-NeoX).
  bool interleaved = false;

  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t out_width() const { return heads * head_dim; }
};

/// Views of a projection's output, or of its gradient.
struct Qkv {
  Tensor q_BSHK, k_BSGK, v_BSGK;
};
Qkv split_qkv(const Tensor& qkv, const AttentionShape& shape, const MicroBatch& batch);

/// Norms of q and k, of each head or of all together; absent for models without them.
struct QkNorm {
  std::shared_ptr<Parameter> q_weight, k_weight;  ///< [head_dim], or [heads * head_dim]
  double eps = 1e-6;
  bool joins_heads = false;
  Communicator* ranks = nullptr;  ///< that have the other heads, where heads are joined
  bool adds_one = false;          ///< to the weights
  bool defined() const { return q_weight != nullptr; }
};

/// Makes q and k what attention wants: normed where the model does that, rotated by the positions
/// of the micro-batch's tokens, which may be any. New keys and values go into the cache where there
/// is one. [T, qkv_width] to [T, qkv_width].
class PrepareQkv final : public Layer {
 public:
  /// `tables` may be shared by layers. `index` names this layer's part of the KV cache.
  PrepareQkv(const AttentionShape& shape, std::shared_ptr<const RopeTables> tables, int index,
             QkNorm qk_norm = {});

  Tensor forward(const Tensor& qkv, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dqkv, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

  // For an owner, which keeps no prepared tensor and spares copies:

  /// forward, but what comes out is views: without norms q and k are rotated in place, with norms
  /// they are made anew, because backward needs them before the norm too.
  Qkv prepare(const Tensor& qkv, Saved& saved, Ctx& ctx);
  /// What `prepare` gave, in backward.
  Qkv prepare_again(Saved& saved, Ctx& ctx);
  /// backward_input in place.
  void turn_into_input_gradient(const Tensor& dqkv, Saved& saved, Ctx& ctx);

 private:
  struct Statistics {
    Tensor rstd_q, rstd_k;
  };
  /// q or k with heads as the norm sees them.
  Tensor as_normed(const Tensor& x_BSHK) const;
  /// Norms of a token's q, or k.
  std::int64_t norms(std::int64_t heads) const { return qk_norm_.joins_heads ? 1 : heads; }
  Statistics statistics_for(const Tensor& qkv, Ctx& ctx) const;
  /// q and k of `raw`, normed and rotated, into `ready`. `again`: statistics are known.
  void norm_and_rotate(const Qkv& raw, const Statistics& statistics, bool again, const Qkv& ready,
                       Ctx& ctx) const;
  Qkv normed(const Tensor& qkv, const Statistics& statistics, bool again, Ctx& ctx) const;
  void keep(const Tensor& qkv, const Statistics& statistics, Saved& saved, Ctx& ctx) const;
  void store_in_cache(const Qkv& ready, Ctx& ctx) const;
  void rotate(const Tensor& x_BSHK, bool inverse, Ctx& ctx) const;
  /// Each row as the last token of its own sequence (Ctx::rows).
  void rotate_by_row(const Tensor& x_B1HK, bool inverse, Ctx& ctx) const;
  /// Both parts of a projection's output, or of its gradient, at once where they lie side by side.
  void rotate_q_and_k(const Tensor& qkv, bool inverse, Ctx& ctx) const;

  enum Slot { kQkv, kRstdQ, kRstdK, kGradQ, kGradK };
  AttentionShape shape_;
  std::shared_ptr<const RopeTables> tables_;
  int index_;
  QkNorm qk_norm_;
};

/// Softmax attention, causal within documents. Where there is a cache, over the keys in it.
/// [T, qkv_width] to [T, out_width].
class CausalAttention final : public Layer {
 public:
  /// `index` names this layer's part of the KV cache. `window`: tokens that a token attends to,
  /// itself included; absent: all before it.
  CausalAttention(const AttentionShape& shape, const ops::ScoreRule& rule, int index,
                  std::optional<std::int64_t> window = {});

  Tensor forward(const Tensor& qkv, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dout, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved&, Ctx&) override {}
  void visit(const ParamVisitor&) override {}
  Cost cost(const CostShape& shape) const override;

  // For an owner that keeps q, k and v itself:

  /// forward without keeping the input.
  Tensor attend(const Qkv& input, Saved& saved, Ctx& ctx);
  /// backward_input, given forward's input.
  Tensor input_gradient(const Tensor& dout, const Qkv& input, Saved& saved, Ctx& ctx);

 private:
  /// What new queries see of the keys, those of the cache included.
  ops::AttentionMask mask(Ctx& ctx) const;
  /// Each row over the keys of its own sequence (Ctx::rows).
  void attend_by_row(const Tensor& q_B1HK, const Tensor& out_B1HK, const Tensor& lse_BH1,
                     Ctx& ctx) const;

  enum Slot { kQkv, kOut, kLse };
  AttentionShape shape_;
  ops::ScoreRule rule_;
  int index_;
  std::optional<std::int64_t> window_;
};

}  // namespace heddle
