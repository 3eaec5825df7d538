#include "nn/attention.h"

#include "nn/kv_cache.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace heddle {

AttentionCore::AttentionCore(const AttentionShape& shape, std::shared_ptr<const RopeTables> tables,
                             double scale, int index)
    : AttentionCore(shape, std::move(tables), scale, index, {}) {}

AttentionCore::AttentionCore(const AttentionShape& shape, std::shared_ptr<const RopeTables> tables,
                             double scale, int index, QkNorm qk_norm)
    : shape_(shape),
      tables_(std::move(tables)),
      scale_(scale),
      index_(index),
      qk_norm_(std::move(qk_norm)) {}

AttentionCore::Qkv AttentionCore::split(const Tensor& qkv, const MicroBatch& batch) const {
  const std::int64_t B = batch.sequences(), S = batch.seq_len();
  const std::int64_t H = shape_.heads, G = shape_.kv_heads, K = shape_.head_dim;
  if (shape_.interleaved) {
    const Tensor by_head = qkv.view({B, S, H, 3, K});
    return {by_head.select(3, 0), by_head.select(3, 1), by_head.select(3, 2)};
  }
  return {qkv.slice(1, 0, H * K).view({B, S, H, K}),
          qkv.slice(1, H * K, (H + G) * K).view({B, S, G, K}),
          qkv.slice(1, (H + G) * K, (H + 2 * G) * K).view({B, S, G, K})};
}

void AttentionCore::rotate(const Tensor& x_BSHK, bool inverse, Ctx& ctx) const {
  if (!tables_->defined()) return;
  ops::rope(x_BSHK, ctx.batch.positions, tables_->cos_PR, tables_->sin_PR, inverse, ctx.stream);
}

void AttentionCore::rotate_q_and_k(const Tensor& qkv, bool inverse, Ctx& ctx) const {
  const Qkv parts = split(qkv, ctx.batch);
  if (shape_.interleaved) {
    rotate(parts.q_BSHK, inverse, ctx);
    rotate(parts.k_BSGK, inverse, ctx);
    return;
  }
  const std::int64_t heads = shape_.heads + shape_.kv_heads, K = shape_.head_dim;
  rotate(qkv.slice(1, 0, heads * K).view({ctx.batch.sequences(), ctx.batch.seq_len(), heads, K}),
         inverse, ctx);
}

AttentionCore::Qkv AttentionCore::prepare(const Tensor& qkv, const Tensor& rstd_q,
                                          const Tensor& rstd_k, Ctx& ctx) const {
  const Qkv raw = split(qkv, ctx.batch);
  Qkv ready = raw;
  if (!has_qk_norm()) {
    rotate_q_and_k(qkv, false, ctx);
  } else {
    ready.q_BSHK = ctx.activation(raw.q_BSHK.shape(), raw.q_BSHK.dtype());
    ready.k_BSGK = ctx.activation(raw.k_BSGK.shape(), raw.k_BSGK.dtype());
    ops::rms_norm_forward(raw.q_BSHK, qk_norm_.q_weight->value, qk_norm_.eps, ready.q_BSHK, rstd_q,
                          ctx.stream);
    ops::rms_norm_forward(raw.k_BSGK, qk_norm_.k_weight->value, qk_norm_.eps, ready.k_BSGK, rstd_k,
                          ctx.stream);
    rotate(ready.q_BSHK, false, ctx);
    rotate(ready.k_BSGK, false, ctx);
  }
  return ready;
}

Tensor AttentionCore::forward(const Tensor& qkv, Saved& saved, Ctx& ctx) {
  const std::int64_t B = ctx.batch.sequences(), S = ctx.batch.seq_len();
  const std::int64_t H = shape_.heads, G = shape_.kv_heads;
  Tensor rstd_q, rstd_k;
  if (has_qk_norm()) {
    rstd_q = ctx.activation({B * S * H}, statistics_of(qkv.dtype()));
    rstd_k = ctx.activation({B * S * G}, statistics_of(qkv.dtype()));
  }
  const Qkv parts = prepare(qkv, rstd_q, rstd_k, ctx);
  const Tensor out = ctx.activation({B * S, shape_.out_width()}, qkv.dtype());
  const Tensor lse_BHS = ctx.activation({B, H, S}, statistics_of(qkv.dtype()));
  ops::AttentionMask mask{.query_offset = 0, .first_key_BS = ctx.batch.first_key};
  Tensor k_BTGK = parts.k_BSGK, v_BTGK = parts.v_BSGK;
  if (ctx.kv_cache != nullptr) {
    ctx.kv_cache->store(index_, k_BTGK, v_BTGK, ctx.stream);
    mask.query_offset = ctx.kv_cache->length();
    k_BTGK = ctx.kv_cache->keys(index_, S);
    v_BTGK = ctx.kv_cache->values(index_, S);
  }
  ops::attention_forward(parts.q_BSHK, k_BTGK, v_BTGK, mask, scale_,
                         out.view({B, S, H, shape_.head_dim}), lse_BHS, ctx.stream);
  if (ctx.keeps_saved) {
    saved.put(kQkv, qkv);
    saved.put(kOut, out);
    saved.put(kLse, lse_BHS);
    if (has_qk_norm()) {
      saved.put(kRstdQ, rstd_q);
      saved.put(kRstdK, rstd_k);
    }
  }
  return out;
}

Tensor AttentionCore::backward_input(const Tensor& dout, Saved& saved, Ctx& ctx) {
  const std::int64_t B = ctx.batch.sequences(), S = ctx.batch.seq_len();
  const Shape heads{B, S, shape_.heads, shape_.head_dim};
  const Tensor qkv = has_qk_norm() ? saved.get(kQkv) : saved.take(kQkv);
  const Tensor out = saved.take(kOut), lse_BHS = saved.take(kLse);
  const Qkv raw = split(qkv, ctx.batch);
  // Without norms q and k were rotated in place by forward; with norms they are made again.
  const Qkv ready = has_qk_norm() ? prepare(qkv, saved.get(kRstdQ), saved.get(kRstdK), ctx) : raw;
  const Tensor dqkv = ctx.activation(qkv.shape(), qkv.dtype());
  const Qkv grad = split(dqkv, ctx.batch);
  {
    const Tensor delta_BHS = ctx.workspace(lse_BHS.shape(), lse_BHS.dtype());
    const ops::AttentionMask mask{.query_offset = 0, .first_key_BS = ctx.batch.first_key};
    ops::attention_backward(dout.view(heads), ready.q_BSHK, ready.k_BSGK, ready.v_BSGK,
                            out.view(heads), lse_BHS, mask, scale_, grad.q_BSHK, grad.k_BSGK,
                            grad.v_BSGK, delta_BHS, ctx.stream);
  }
  rotate_q_and_k(dqkv, true, ctx);
  if (has_qk_norm()) {
    const auto through_norm = [&](const Tensor& dy, const Tensor& x, const Parameter& weight,
                                  const Tensor& rstd, int slot) {
      const Tensor kept =
          ctx.activation(dy.shape(), dy.dtype());  // W needs the gradient before the norm
      ops::copy(dy, kept, ctx.stream);
      ops::rms_norm_backward_input(kept, x, weight.value, rstd, dy, ctx.stream);
      saved.put(slot, kept);
    };
    through_norm(grad.q_BSHK, raw.q_BSHK, *qk_norm_.q_weight, saved.get(kRstdQ), kGradQ);
    through_norm(grad.k_BSGK, raw.k_BSGK, *qk_norm_.k_weight, saved.get(kRstdK), kGradK);
  }
  return dqkv;
}

void AttentionCore::backward_weight(Saved& saved, Ctx& ctx) {
  if (!has_qk_norm()) return;
  const Qkv raw = split(saved.take(kQkv), ctx.batch);
  const auto weight_grad = [&](int grad_slot, int rstd_slot, const Tensor& x, Parameter& weight) {
    weight.clear_stale_grad(ctx.stream);
    ops::rms_norm_backward_weight(saved.take(grad_slot), x, saved.take(rstd_slot), weight.grad,
                                  ctx.stream);
  };
  weight_grad(kGradQ, kRstdQ, raw.q_BSHK, *qk_norm_.q_weight);
  weight_grad(kGradK, kRstdK, raw.k_BSGK, *qk_norm_.k_weight);
}

void AttentionCore::visit(const ParamVisitor& visitor) {
  if (!has_qk_norm()) return;
  visitor(*qk_norm_.q_weight);
  visitor(*qk_norm_.k_weight);
}

Cost AttentionCore::cost(const CostShape& shape) const {
  const auto T = static_cast<double>(shape.tokens()), S = static_cast<double>(shape.seq_len);
  // Two products of S x S/2 x K per head forward, twice that backward; recomputing the scores in
  // backward is not counted, as in every published count.
  const double forward = 2.0 * T * S * static_cast<double>(shape_.out_width());
  const std::size_t qkv = shape.bytes(shape_.qkv_width()), out = shape.bytes(shape_.out_width());
  const std::int64_t statistics =
      shape_.heads + (has_qk_norm() ? shape_.heads + shape_.kv_heads : 0);
  const std::size_t statistics_bytes =
      static_cast<std::size_t>(shape.tokens() * statistics) * size_of(statistics_of(shape.dtype));
  Cost cost{forward, 2.0 * forward, 0.0, qkv + out + statistics_bytes, qkv, out};
  cost.attention_flops = forward;
  // Rotating q and k, and back.
  cost.touched_bytes_f = cost.touched_bytes_b =
      2.0 * static_cast<double>(shape.bytes((shape_.heads + shape_.kv_heads) * shape_.head_dim));
  return cost;
}

}  // namespace heddle
