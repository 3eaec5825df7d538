#include "nn/attention.h"

#include <algorithm>
#include <array>

#include "nn/decoded_rows.h"
#include "nn/norm.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace heddle {

Qkv split_qkv(const Tensor& qkv, const AttentionShape& shape, const MicroBatch& batch) {
  const std::int64_t B = batch.sequences(), S = batch.seq_len();
  const std::int64_t H = shape.heads, G = shape.kv_heads, K = shape.head_dim;
  if (shape.interleaved) {
    const Tensor by_head = qkv.view({B, S, H, 3, K});
    return {by_head.select(3, 0), by_head.select(3, 1), by_head.select(3, 2)};
  }
  return {qkv.slice(1, 0, H * K).view({B, S, H, K}),
          qkv.slice(1, H * K, (H + G) * K).view({B, S, G, K}),
          qkv.slice(1, (H + G) * K, (H + 2 * G) * K).view({B, S, G, K})};
}

namespace {

/// Tokens of the sequences that the micro-batch's tokens belong to, up to the last of them.
std::int64_t sequence_length(const Ctx& ctx) {
  if (ctx.batch.places) return ctx.batch.places->seq_len;
  return ctx.batch.seq_len() + (ctx.kv_cache == nullptr ? 0 : ctx.kv_cache->length());
}

}  // namespace

PrepareQkv::PrepareQkv(const AttentionShape& shape, std::shared_ptr<const RopeTables> tables,
                       int index, QkNorm qk_norm)
    : shape_(shape), tables_(std::move(tables)), index_(index), qk_norm_(std::move(qk_norm)) {}

void PrepareQkv::rotate(const Tensor& x_BSHK, bool inverse, Ctx& ctx) const {
  if (!tables_->defined()) return;
  if (ctx.rows != nullptr && tables_->depends_on_length()) {
    return rotate_by_row(x_BSHK, inverse, ctx);
  }
  const RopeTable& table = tables_->of_length(sequence_length(ctx));
  ops::rope(x_BSHK, ctx.batch.positions, table.cos_PR, table.sin_PR, tables_->pairs(), inverse,
            ctx.stream);
}

void PrepareQkv::rotate_by_row(const Tensor& x_B1HK, bool inverse, Ctx& ctx) const {
  for (std::int64_t row = 0; row < x_B1HK.size(0); ++row) {
    const RopeTable& table = tables_->of_length(ctx.rows->cache(row).length() + 1);
    ops::rope(x_B1HK.slice(0, row, row + 1), ctx.batch.positions.slice(0, row, row + 1),
              table.cos_PR, table.sin_PR, tables_->pairs(), inverse, ctx.stream);
  }
}

void PrepareQkv::rotate_q_and_k(const Tensor& qkv, bool inverse, Ctx& ctx) const {
  if (shape_.interleaved) {
    const Qkv parts = split_qkv(qkv, shape_, ctx.batch);
    rotate(parts.q_BSHK, inverse, ctx);
    rotate(parts.k_BSGK, inverse, ctx);
    return;
  }
  const std::int64_t heads = shape_.heads + shape_.kv_heads, K = shape_.head_dim;
  rotate(qkv.slice(1, 0, heads * K).view({ctx.batch.sequences(), ctx.batch.seq_len(), heads, K}),
         inverse, ctx);
}

Tensor PrepareQkv::as_normed(const Tensor& x_BSHK) const {
  if (!qk_norm_.joins_heads) return x_BSHK;
  return x_BSHK.view({x_BSHK.size(0), x_BSHK.size(1), 1, x_BSHK.size(2) * x_BSHK.size(3)});
}

PrepareQkv::Statistics PrepareQkv::statistics_for(const Tensor& qkv, Ctx& ctx) const {
  const std::int64_t tokens = ctx.batch.tokens();
  Tensor rstd_q = ctx.activation({tokens * norms(shape_.heads)}, statistics_of(qkv.dtype()));
  return {std::move(rstd_q),
          ctx.activation({tokens * norms(shape_.kv_heads)}, statistics_of(qkv.dtype()))};
}

void PrepareQkv::norm_and_rotate(const Qkv& raw, const Statistics& statistics, bool again,
                                 const Qkv& ready, Ctx& ctx) const {
  const auto factor = [&](const Parameter& weight) {
    return norm_factor(weight, qk_norm_.adds_one, ctx);
  };
  const std::array<JointNorm::Rows, 2> norms = {{{as_normed(raw.q_BSHK), factor(*qk_norm_.q_weight),
                                                  statistics.rstd_q, as_normed(ready.q_BSHK)},
                                                 {as_normed(raw.k_BSGK), factor(*qk_norm_.k_weight),
                                                  statistics.rstd_k, as_normed(ready.k_BSGK)}}};
  JointNorm(qk_norm_.ranks).forward(norms, qk_norm_.eps, again, ctx);
  rotate(ready.q_BSHK, false, ctx);
  rotate(ready.k_BSGK, false, ctx);
}

Qkv PrepareQkv::normed(const Tensor& qkv, const Statistics& statistics, bool again,
                       Ctx& ctx) const {
  const Qkv raw = split_qkv(qkv, shape_, ctx.batch);
  Qkv ready = raw;
  ready.q_BSHK = ctx.activation(raw.q_BSHK.shape(), qkv.dtype());
  ready.k_BSGK = ctx.activation(raw.k_BSGK.shape(), qkv.dtype());
  norm_and_rotate(raw, statistics, again, ready, ctx);
  return ready;
}

void PrepareQkv::keep(const Tensor& qkv, const Statistics& statistics, Saved& saved,
                      Ctx& ctx) const {
  if (!ctx.keeps_all()) return;
  saved.put(kQkv, qkv);
  if (!qk_norm_.defined()) return;
  saved.put(kRstdQ, statistics.rstd_q);
  saved.put(kRstdK, statistics.rstd_k);
}

void PrepareQkv::store_in_cache(const Qkv& ready, Ctx& ctx) const {
  if (ctx.rows != nullptr) ctx.rows->store(index_, ready.k_BSGK, ready.v_BSGK, ctx.stream);
  if (ctx.kv_cache == nullptr) return;
  ctx.kv_cache->store(index_, ready.k_BSGK, ready.v_BSGK, ctx.stream);
}

Qkv PrepareQkv::prepare(const Tensor& qkv, Saved& saved, Ctx& ctx) {
  Statistics statistics;
  Qkv ready;
  if (qk_norm_.defined()) {
    statistics = statistics_for(qkv, ctx);
    ready = normed(qkv, statistics, false, ctx);
  } else {
    rotate_q_and_k(qkv, false, ctx);
    ready = split_qkv(qkv, shape_, ctx.batch);
  }
  store_in_cache(ready, ctx);
  keep(qkv, statistics, saved, ctx);
  return ready;
}

Qkv PrepareQkv::prepare_again(Saved& saved, Ctx& ctx) {
  if (!qk_norm_.defined()) return split_qkv(saved.take(kQkv), shape_, ctx.batch);
  return normed(saved.get(kQkv), {saved.get(kRstdQ), saved.get(kRstdK)}, true, ctx);
}

Tensor PrepareQkv::forward(const Tensor& qkv, Saved& saved, Ctx& ctx) {
  if (!qk_norm_.defined()) {
    rotate_q_and_k(qkv, false, ctx);
    store_in_cache(split_qkv(qkv, shape_, ctx.batch), ctx);
    return qkv;
  }
  const Statistics statistics = statistics_for(qkv, ctx);
  const Tensor prepared = ctx.activation(qkv.shape(), qkv.dtype());
  const Qkv raw = split_qkv(qkv, shape_, ctx.batch), ready = split_qkv(prepared, shape_, ctx.batch);
  norm_and_rotate(raw, statistics, false, ready, ctx);
  ops::copy(raw.v_BSGK, ready.v_BSGK, ctx.stream);
  store_in_cache(ready, ctx);
  keep(qkv, statistics, saved, ctx);
  return prepared;
}

void PrepareQkv::turn_into_input_gradient(const Tensor& dqkv, Saved& saved, Ctx& ctx) {
  rotate_q_and_k(dqkv, true, ctx);
  if (!qk_norm_.defined()) return;
  const Qkv grad = split_qkv(dqkv, shape_, ctx.batch);
  const Qkv raw = split_qkv(saved.get(kQkv), shape_, ctx.batch);
  const auto through_norm = [&](const Tensor& dy, const Tensor& x, const Parameter& weight,
                                Tensor rstd, int slot) -> JointNorm::Gradients {
    const Tensor kept =
        ctx.activation(dy.shape(), dy.dtype());  // W needs the gradient before the norm
    ops::copy(dy, kept, ctx.stream);
    saved.put(slot, kept);
    return {kept, x, norm_factor(weight, qk_norm_.adds_one, ctx), std::move(rstd), dy};
  };
  const std::array norms = {through_norm(as_normed(grad.q_BSHK), as_normed(raw.q_BSHK),
                                         *qk_norm_.q_weight, saved.get(kRstdQ), kGradQ),
                            through_norm(as_normed(grad.k_BSGK), as_normed(raw.k_BSGK),
                                         *qk_norm_.k_weight, saved.get(kRstdK), kGradK)};
  JointNorm(qk_norm_.ranks).backward_input(norms, qk_norm_.eps, ctx);
}

Tensor PrepareQkv::backward_input(const Tensor& dqkv, Saved& saved, Ctx& ctx) {
  Tensor gradient = ctx.activation(dqkv.shape(), dqkv.dtype());
  ops::copy(dqkv, gradient, ctx.stream);
  turn_into_input_gradient(gradient, saved, ctx);
  return gradient;
}

void PrepareQkv::backward_weight(Saved& saved, Ctx& ctx) {
  if (!qk_norm_.defined()) return;
  const Qkv raw = split_qkv(saved.take(kQkv), shape_, ctx.batch);
  const auto weight_grad = [&](int grad_slot, int rstd_slot, const Tensor& x, Parameter& weight) {
    const Tensor dy = saved.take(grad_slot), rstd = saved.take(rstd_slot);
    if (!weight.trains) return;
    weight.clear_stale_grad(ctx.stream);
    ops::rms_norm_backward_weight(dy, x, rstd, weight.grad, ctx.stream);
  };
  weight_grad(kGradQ, kRstdQ, as_normed(raw.q_BSHK), *qk_norm_.q_weight);
  weight_grad(kGradK, kRstdK, as_normed(raw.k_BSGK), *qk_norm_.k_weight);
}

void PrepareQkv::visit(const ParamVisitor& visitor) {
  if (!qk_norm_.defined()) return;
  visitor(*qk_norm_.q_weight);
  visitor(*qk_norm_.k_weight);
}

Cost PrepareQkv::cost(const CostShape& shape) const {
  Cost cost;
  if (qk_norm_.defined()) {
    const std::int64_t statistics = shape.tokens() * (norms(shape_.heads) + norms(shape_.kv_heads));
    cost.kept_input_bytes = shape.bytes(shape_.qkv_width());
    cost.saved_bytes = cost.kept_input_bytes +
                       static_cast<std::size_t>(statistics) * size_of(statistics_of(shape.dtype));
    const JointNorm joint(qk_norm_.ranks);
    cost.calls_f = joint.forward_calls(2, shape.tokens(), shape.dtype);
    cost.calls_b = joint.backward_calls(2, shape.tokens(), shape.dtype);
  }
  // Rotating q and k, and back.
  cost.touched_bytes_f = cost.touched_bytes_b =
      2.0 * static_cast<double>(shape.bytes((shape_.heads + shape_.kv_heads) * shape_.head_dim));
  return cost;
}

CausalAttention::CausalAttention(const AttentionShape& shape, const ops::ScoreRule& rule, int index,
                                 std::optional<std::int64_t> window)
    : shape_(shape), rule_(rule), index_(index), window_(window) {}

ops::AttentionMask CausalAttention::mask(Ctx& ctx) const {
  ops::AttentionMask mask{.query_offset = 0, .first_key_BS = ctx.batch.first_key};
  if (ctx.kv_cache != nullptr) mask.query_offset = ctx.kv_cache->length();
  const std::int64_t B = ctx.batch.sequences(), S = ctx.batch.seq_len();
  if (!window_ || mask.query_offset + S <= *window_) return mask;
  const Tensor first_key_BS = ctx.workspace({B, S}, DType::i32);
  return ops::in_window(mask, *window_, first_key_BS, ctx.stream);
}

Tensor CausalAttention::attend(const Qkv& input, Saved& saved, Ctx& ctx) {
  if (saved.has(kOut)) return saved.get(kOut);  // kept while the rest is computed again
  const std::int64_t B = ctx.batch.sequences(), S = ctx.batch.seq_len(), H = shape_.heads;
  const DType dtype = input.q_BSHK.dtype();
  const Tensor out = ctx.activation({B * S, shape_.out_width()}, dtype);
  const Tensor lse_BHS = ctx.activation({B, H, S}, statistics_of(dtype));
  Tensor k_BTGK = input.k_BSGK, v_BTGK = input.v_BSGK;
  if (ctx.kv_cache != nullptr) {
    k_BTGK = ctx.kv_cache->keys(index_, S);
    v_BTGK = ctx.kv_cache->values(index_, S);
  }
  const Tensor out_BSHK = out.view({B, S, H, shape_.head_dim});
  if (ctx.rows != nullptr) {
    attend_by_row(input.q_BSHK, out_BSHK, lse_BHS, ctx);
  } else {
    ops::attention_forward(input.q_BSHK, k_BTGK, v_BTGK, mask(ctx), rule_, out_BSHK, lse_BHS,
                           ctx.stream);
  }
  if (ctx.keeps_dear()) {
    saved.put(kOut, out);
    saved.put(kLse, lse_BHS);
  }
  return out;
}

void CausalAttention::attend_by_row(const Tensor& q_B1HK, const Tensor& out_B1HK,
                                    const Tensor& lse_BH1, Ctx& ctx) const {
  for (std::int64_t row = 0; row < q_B1HK.size(0); ++row) {
    const KvCache& cache = ctx.rows->cache(row);
    const auto own = [&](const Tensor& all) { return all.slice(0, row, row + 1); };
    // One query sees the last keys and no others, wherever they stand.
    const std::int64_t length = cache.length() + 1;
    const std::int64_t seen = std::min(window_.value_or(length), length);
    const auto last = [&](const Tensor& all) { return all.slice(1, length - seen, length); };
    ops::attention_forward(own(q_B1HK), last(cache.keys(index_, 1)), last(cache.values(index_, 1)),
                           {.query_offset = seen - 1, .first_key_BS = {}}, rule_, own(out_B1HK),
                           own(lse_BH1), ctx.stream);
  }
}

Tensor CausalAttention::input_gradient(const Tensor& dout, const Qkv& input, Saved& saved,
                                       Ctx& ctx) {
  const Shape heads{ctx.batch.sequences(), ctx.batch.seq_len(), shape_.heads, shape_.head_dim};
  const Tensor out = saved.take(kOut), lse_BHS = saved.take(kLse);
  const Tensor dqkv = ctx.activation({ctx.batch.tokens(), shape_.qkv_width()}, dout.dtype());
  const Qkv grad = split_qkv(dqkv, shape_, ctx.batch);
  const Tensor delta_BHS = ctx.workspace(lse_BHS.shape(), lse_BHS.dtype());
  ops::attention_backward(dout.view(heads), input.q_BSHK, input.k_BSGK, input.v_BSGK,
                          out.view(heads), lse_BHS, mask(ctx), rule_, grad.q_BSHK, grad.k_BSGK,
                          grad.v_BSGK, delta_BHS, ctx.stream);
  return dqkv;
}

Tensor CausalAttention::forward(const Tensor& qkv, Saved& saved, Ctx& ctx) {
  if (ctx.keeps_all()) saved.put(kQkv, qkv);
  return attend(split_qkv(qkv, shape_, ctx.batch), saved, ctx);
}

Tensor CausalAttention::backward_input(const Tensor& dout, Saved& saved, Ctx& ctx) {
  return input_gradient(dout, split_qkv(saved.take(kQkv), shape_, ctx.batch), saved, ctx);
}

Cost CausalAttention::cost(const CostShape& shape) const {
  const auto T = static_cast<double>(shape.tokens()), S = static_cast<double>(shape.seq_len);
  // Two products of S x S/2 x K per head forward, less what lies before the window, twice that
  // backward; recomputing the scores in backward is not counted, as in every published count.
  const double unseen = window_ ? std::max(0.0, S - static_cast<double>(*window_)) : 0.0;
  const double seen = S - unseen * unseen / S;  // twice the mean of a token
  const double forward = 2.0 * T * seen * static_cast<double>(shape_.out_width());
  const std::size_t qkv = shape.bytes(shape_.qkv_width()), out = shape.bytes(shape_.out_width());
  const std::size_t lse =
      static_cast<std::size_t>(shape.tokens() * shape_.heads) * size_of(statistics_of(shape.dtype));
  Cost cost{forward, 2.0 * forward, 0.0, qkv + out + lse, qkv, out};
  cost.dear_bytes = out + lse;
  cost.attention_flops = forward;
  return cost;
}

}  // namespace heddle
