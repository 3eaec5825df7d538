#include <optional>

#include "base/check.h"
#include "ops/backend.h"
#include "ops/operands.h"
#include "ops/stretches.h"
#include "tensor/device_runtime.h"

namespace heddle::ops {
namespace {

/// The operations of a device; on a GPU, for as long as nothing that waits for other ranks is
/// launched.
class Launch {
 public:
  explicit Launch(Device device)
      : operations_(device.kind == Device::Kind::cuda ? cuda_operations() : cpu_operations()) {
    if (device.kind == Device::Kind::cuda) lock_.emplace();
  }
  const Operations* operator->() const { return &operations_; }

 private:
  const Operations& operations_;
  std::optional<device_runtime::LaunchLock> lock_;
};

}  // namespace

// Operands are checked for all devices here (ops/operands.h). A dry stream computes nothing; what
// an operation would return is then 0.

void swiglu_forward(const Tensor& gate_TF, const Tensor& up_TF, const Tensor& y_TF,
                    Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->swiglu_forward(gate_TF, up_TF, y_TF, stream);
}

void swiglu_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF,
                     const Tensor& dgate_TF, const Tensor& dup_TF, const Tensor& y_TF,
                     Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->swiglu_backward(dy_TF, gate_TF, up_TF, dgate_TF, dup_TF, y_TF, stream);
}

void geglu_forward(const Tensor& gate_TF, const Tensor& up_TF, Gelu kind, const Tensor& y_TF,
                   Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->geglu_forward(gate_TF, up_TF, kind, y_TF, stream);
}

void geglu_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF, Gelu kind,
                    const Tensor& dgate_TF, const Tensor& dup_TF, const Tensor& y_TF,
                    Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->geglu_backward(dy_TF, gate_TF, up_TF, kind, dgate_TF, dup_TF, y_TF, stream);
}

void soft_cap(const Tensor& x_TF, double cap, Stream& stream) {
  HEDDLE_CHECK(cap > 0.0, "a cap of {}", cap);
  if (stream.is_dry()) return;
  Launch(stream.device())->soft_cap(x_TF, cap, stream);
}

void soft_cap_backward(const Tensor& y_TF, double cap, const Tensor& dx_TF, Stream& stream) {
  HEDDLE_CHECK(cap > 0.0, "a cap of {}", cap);
  check_like(y_TF, dx_TF.shape(), dx_TF.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())->soft_cap_backward(y_TF, cap, dx_TF, stream);
}

void gelu_forward(const Tensor& x_TF, Gelu kind, const Tensor& y_TF, Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->gelu_forward(x_TF, kind, y_TF, stream);
}

void gelu_backward(const Tensor& dy_TF, const Tensor& x_TF, Gelu kind, const Tensor& dx_TF,
                   const Tensor& y_TF, Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->gelu_backward(dy_TF, x_TF, kind, dx_TF, y_TF, stream);
}

void adamw(const Tensor& p, const Tensor& g, const Tensor& m, const Tensor& v,
           const AdamWArgs& args, Stream& stream) {
  HEDDLE_CHECK(args.step >= 1, "AdamW step {}", args.step);
  check_flat({&p, &g, &m, &v, &args.p_low});
  if (stream.is_dry()) return;
  Launch(stream.device())->adamw(p, g, m, v, args, stream);
}

void sgd(const Tensor& p, const Tensor& g, const Tensor& m, const SgdArgs& args, Stream& stream) {
  HEDDLE_CHECK(m.defined() || args.momentum == 0.0, "momentum {} without its tensor",
               args.momentum);
  check_flat({&p, &g, &m, &args.p_low});
  if (stream.is_dry()) return;
  Launch(stream.device())->sgd(p, g, m, args, stream);
}

void running_mean(const Tensor& g, const Tensor& m, const RunningMeanArgs& args, Stream& stream) {
  check_flat({&g, &m});
  if (stream.is_dry()) return;
  Launch(stream.device())->running_mean(g, m, args, stream);
}

void blend(const Tensor& x, const Tensor& m, const BlendArgs& args, Stream& stream) {
  check_flat({&x, &m});
  if (stream.is_dry()) return;
  Launch(stream.device())->blend(x, m, args, stream);
}

void frozen_adam(const Tensor& p, const Tensor& made, const Tensor& m, const Tensor& v,
                 const FrozenAdamArgs& args, Stream& stream) {
  check_flat({&made, &m, &p, &v, &args.p_low});
  if (stream.is_dry()) return;
  Launch(stream.device())->frozen_adam(p, made, m, v, args, stream);
}

void window_first_keys(const AttentionMask& mask, std::int64_t window, const Tensor& first_key_BS,
                       Stream& stream) {
  HEDDLE_CHECK(window > 0 && mask.step == 1, "a window of {} in steps of {}", window, mask.step);
  check_flat({&first_key_BS});
  check_like(first_key_BS, first_key_BS.shape(), DType::i32);
  if (mask.first_key_BS.defined()) {
    check_like(mask.first_key_BS, first_key_BS.shape(), DType::i32);
  }
  if (stream.is_dry()) return;
  Launch(stream.device())->window_first_keys(mask, window, first_key_BS, stream);
}

void attention_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                       const AttentionMask& mask, const ScoreRule& rule, const Tensor& out_BSHK,
                       const Tensor& lse_BHS, Stream& stream) {
  check_attention(q_BSHK, k_BTGK, v_BTGK, mask, out_BSHK, lse_BHS);
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->attention_forward(q_BSHK, k_BTGK, v_BTGK, mask, rule, out_BSHK, lse_BHS, stream);
}

void attention_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BSGK,
                        const Tensor& v_BSGK, const Tensor& out_BSHK, const Tensor& lse_BHS,
                        const AttentionMask& mask, const ScoreRule& rule, const Tensor& dq_BSHK,
                        const Tensor& dk_BSGK, const Tensor& dv_BSGK, const Tensor& delta_BHS,
                        Stream& stream) {
  check_attention(q_BSHK, k_BSGK, v_BSGK, mask, out_BSHK, lse_BHS);
  HEDDLE_CHECK(mask.query_offset == 0 && k_BSGK.size(1) == q_BSHK.size(1),
               "gradients with {} queries after {} for {} keys", q_BSHK.size(1), mask.query_offset,
               k_BSGK.size(1));
  for (const Tensor* t : {&dout_BSHK, &dq_BSHK}) check_like(*t, q_BSHK.shape(), q_BSHK.dtype());
  for (const Tensor* t : {&dk_BSGK, &dv_BSGK}) check_like(*t, k_BSGK.shape(), q_BSHK.dtype());
  check_like(delta_BHS, lse_BHS.shape(), lse_BHS.dtype());
  check_flat({&lse_BHS, &delta_BHS});
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->attention_backward(dout_BSHK, q_BSHK, k_BSGK, v_BSGK, out_BSHK, lse_BHS, mask, rule,
                           dq_BSHK, dk_BSGK, dv_BSGK, delta_BHS, stream);
}

void attention_block_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                             const AttentionMask& mask, const ScoreRule& rule, KeyBlock block,
                             const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream) {
  check_attention_block(q_BSHK, k_BTGK, v_BTGK, mask);
  check_attention_rows(out_BSHK, q_BSHK.shape(), wide_of(q_BSHK.dtype()), {&lse_BHS});
  if (stream.is_dry()) return;
  if (mask.jump != 0 && stream.device().kind == Device::Kind::cpu) {
    for_each_stretch(mask, q_BSHK.size(1),
                     [&](std::int64_t begin, std::int64_t end, const AttentionMask& own) {
                       attention_block_forward(q_BSHK.slice(1, begin, end), k_BTGK, v_BTGK, own,
                                               rule, block, out_BSHK.slice(1, begin, end),
                                               lse_BHS.slice(2, begin, end), stream);
                     });
    return;
  }
  Launch(stream.device())
      ->attention_block_forward(q_BSHK, k_BTGK, v_BTGK, mask, rule, block, out_BSHK, lse_BHS,
                                stream);
}

void attention_merge(const Tensor& part_BSHK, const Tensor& part_lse_BHS, const Tensor& out_BSHK,
                     const Tensor& lse_BHS, Stream& stream) {
  check_attention_rows(out_BSHK, out_BSHK.shape(), wide_of(out_BSHK.dtype()),
                       {&lse_BHS, &part_lse_BHS});
  check_like(part_BSHK, out_BSHK.shape(), out_BSHK.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())->attention_merge(part_BSHK, part_lse_BHS, out_BSHK, lse_BHS, stream);
}

void attention_delta(const Tensor& dout_BSHK, const Tensor& out_BSHK, const Tensor& delta_BHS,
                     Stream& stream) {
  check_attention_rows(out_BSHK, dout_BSHK.shape(), out_BSHK.dtype(), {&delta_BHS});
  HEDDLE_CHECK(
      out_BSHK.dtype() == dout_BSHK.dtype() || out_BSHK.dtype() == wide_of(dout_BSHK.dtype()),
      "an output of {} with a gradient of {}", name_of(out_BSHK.dtype()),
      name_of(dout_BSHK.dtype()));
  if (stream.is_dry()) return;
  Launch(stream.device())->attention_delta(dout_BSHK, out_BSHK, delta_BHS, stream);
}

void attention_block_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BTGK,
                              const Tensor& v_BTGK, const Tensor& lse_BHS, const Tensor& delta_BHS,
                              const AttentionMask& mask, const ScoreRule& rule,
                              const Tensor& dq_BSHK, const Tensor& dk_BTGK, const Tensor& dv_BTGK,
                              Stream& stream) {
  const DType wide = wide_of(q_BSHK.dtype());
  check_attention_block(q_BSHK, k_BTGK, v_BTGK, mask);
  check_attention_rows(dq_BSHK, q_BSHK.shape(), wide, {&lse_BHS, &delta_BHS});
  check_like(dout_BSHK, q_BSHK.shape(), q_BSHK.dtype());
  for (const Tensor* t : {&dk_BTGK, &dv_BTGK}) check_like(*t, k_BTGK.shape(), wide);
  if (stream.is_dry()) return;
  if (mask.jump != 0 && stream.device().kind == Device::Kind::cpu) {
    for_each_stretch(
        mask, q_BSHK.size(1), [&](std::int64_t begin, std::int64_t end, const AttentionMask& own) {
          attention_block_backward(dout_BSHK.slice(1, begin, end), q_BSHK.slice(1, begin, end),
                                   k_BTGK, v_BTGK, lse_BHS.slice(2, begin, end),
                                   delta_BHS.slice(2, begin, end), own, rule,
                                   dq_BSHK.slice(1, begin, end), dk_BTGK, dv_BTGK, stream);
        });
    return;
  }
  Launch(stream.device())
      ->attention_block_backward(dout_BSHK, q_BSHK, k_BTGK, v_BTGK, lse_BHS, delta_BHS, mask, rule,
                                 dq_BSHK, dk_BTGK, dv_BTGK, stream);
}

void cast(const Tensor& x, const Tensor& y, Stream& stream) {
  check_flat({&x, &y});
  HEDDLE_CHECK(x.shape() == y.shape() && is_floating(x.dtype()) && is_floating(y.dtype()),
               "cast from {} {} to {} {}", name_of(x.dtype()), x.shape().text(), name_of(y.dtype()),
               y.shape().text());
  if (stream.is_dry()) return;
  Launch(stream.device())->cast(x, y, stream);
}

void fill(const Tensor& y, double value, Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->fill(y, value, stream);
}

void copy(const Tensor& x, const Tensor& y, Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->copy(x, y, stream);
}

void add(const Tensor& a, const Tensor& b, const Tensor& y, Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->add(a, b, y, stream);
}

void accumulate(const Tensor& x, const Tensor& y, Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->accumulate(x, y, stream);
}

void scale(const Tensor& y, double factor, Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->scale(y, factor, stream);
}

void add_bias(const Tensor& y_TN, const Tensor& b_N, Stream& stream) {
  check_bias(y_TN, b_N, y_TN.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())->add_bias(y_TN, b_N, stream);
}

void bias_backward(const Tensor& dy_TN, const Tensor& db_N, Stream& stream) {
  check_bias(dy_TN, db_N, wide_of(dy_TN.dtype()));
  if (stream.is_dry()) return;
  Launch(stream.device())->bias_backward(dy_TN, db_N, stream);
}

void embedding_forward(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD,
                       Stream& stream) {
  check_embedding(ids_T, table_VD, y_TD, y_TD.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())->embedding_forward(ids_T, table_VD, y_TD, stream);
}

void embedding_add(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD,
                   Stream& stream) {
  check_embedding(ids_T, table_VD, y_TD, y_TD.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())->embedding_add(ids_T, table_VD, y_TD, stream);
}

void embedding_backward(const Tensor& ids_T, const Tensor& dy_TD, const Tensor& dtable_VD,
                        Stream& stream) {
  check_embedding(ids_T, dtable_VD, dy_TD, wide_of(dy_TD.dtype()));
  if (stream.is_dry()) return;
  Launch(stream.device())->embedding_backward(ids_T, dy_TD, dtable_VD, stream);
}

void held_rows(const Tensor& ids_T, std::int64_t first, std::int64_t held, const Tensor& rows_T,
               Stream& stream) {
  check_flat({&ids_T, &rows_T});
  if (stream.is_dry()) return;
  Launch(stream.device())->held_rows(ids_T, first, held, rows_T, stream);
}

void route(const Tensor& logits_TE, const RouterRule& rule, const Tensor& bias_E,
           const Tensor& experts_TK, const Tensor& weights_TK, Stream& stream) {
  check_routing(logits_TE, rule, experts_TK, weights_TK);
  if (bias_E.defined()) check_like(bias_E, {logits_TE.size(1)}, logits_TE.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())->route(logits_TE, rule, bias_E, experts_TK, weights_TK, stream);
}

void route_backward(const Tensor& dweights_TK, const Tensor& logits_TE, const RouterRule& rule,
                    const Tensor& experts_TK, const Tensor& dlogits_TE, Stream& stream) {
  check_routing(logits_TE, rule, experts_TK, dweights_TK);
  check_like(dlogits_TE, logits_TE.shape(), logits_TE.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->route_backward(dweights_TK, logits_TE, rule, experts_TK, dlogits_TE, stream);
}

void count_choices(const Tensor& experts_TK, const Tensor& counts_E1, Stream& stream) {
  check_choices(experts_TK, {});
  check_flat({&counts_E1});
  if (stream.is_dry()) return;
  Launch(stream.device())->count_choices(experts_TK, counts_E1, stream);
}

void router_loss_backward(const Tensor& logits_TE, const RouterRule& rule, const Tensor& counts_E1,
                          const RouterLoss& loss, const Tensor& dlogits_TE, Stream& stream) {
  check_like(dlogits_TE, logits_TE.shape(), logits_TE.dtype());
  check_flat({&logits_TE, &dlogits_TE});
  check_like(counts_E1, {logits_TE.size(1) + 1}, logits_TE.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->router_loss_backward(logits_TE, rule, counts_E1, loss, dlogits_TE, stream);
}

void weigh_choices(const Tensor& logits_TE, const RouterRule& rule, const Tensor& experts_TK,
                   const Tensor& weights_TK, Stream& stream) {
  check_routing(logits_TE, rule, experts_TK, weights_TK);
  if (stream.is_dry()) return;
  Launch(stream.device())->weigh_choices(logits_TE, rule, experts_TK, weights_TK, stream);
}

void drop_choices(const Tensor& scores_TK, Victims victims, std::int64_t capacity,
                  const TokenDraw& draw, std::int64_t experts, const Tensor& experts_TK,
                  Stream& stream) {
  check_choices(experts_TK, {});
  check_like(scores_TK, experts_TK.shape(), scores_TK.dtype());
  check_flat({&scores_TK});
  HEDDLE_CHECK(capacity > 0, "experts with room for {} tokens", capacity);
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->drop_choices(scores_TK, victims, capacity, draw, experts, experts_TK, stream);
}

void add_load(const Tensor& made_TK, const Tensor& kept_TK, const Tensor& load, Stream& stream) {
  check_choices(made_TK, {&kept_TK});
  check_like(load, load.shape(), DType::f64);
  check_flat({&load});
  if (stream.is_dry()) return;
  Launch(stream.device())->add_load(made_TK, kept_TK, load, stream);
}

void counts_of_load(const Tensor& load, std::int64_t per_token, const Tensor& counts_E1,
                    Stream& stream) {
  check_like(load, {counts_E1.count() + 1}, DType::f64);
  for (const Tensor* t : {&load, &counts_E1}) check_flat({t});
  if (stream.is_dry()) return;
  Launch(stream.device())->counts_of_load(load, per_token, counts_E1, stream);
}

void count_by_sequence(const Tensor& experts_TK, const Tensor& sequence_T, std::int64_t slots,
                       const Tensor& counts_SE1, Stream& stream) {
  check_choices(experts_TK, {});
  check_like(sequence_T, {experts_TK.size(0)}, DType::i32);
  for (const Tensor* t : {&sequence_T, &counts_SE1}) check_flat({t});
  if (stream.is_dry()) return;
  Launch(stream.device())->count_by_sequence(experts_TK, sequence_T, slots, counts_SE1, stream);
}

void balance_bias(const Tensor& load_E, double rate, const Tensor& clip, std::int64_t begin,
                  const Tensor& bias, Stream& stream) {
  check_like(load_E, load_E.shape(), DType::f64);
  check_like(clip, {1}, DType::f32);
  for (const Tensor* t : {&load_E, &bias}) check_flat({t});
  HEDDLE_CHECK(begin >= 0 && begin + bias.count() <= load_E.count(), "{} biases from {} on for {}",
               bias.count(), begin, load_E.shape().text());
  if (stream.is_dry()) return;
  Launch(stream.device())->balance_bias(load_E, rate, clip, begin, bias, stream);
}

void pick_numbers(const Tensor& numbers, const Tensor& index, const Tensor& picked,
                  Stream& stream) {
  check_like(numbers, numbers.shape(), DType::i32);
  check_like(index, picked.shape(), DType::i32);
  check_like(picked, picked.shape(), DType::i32);
  for (const Tensor* t : {&numbers, &index, &picked}) check_flat({t});
  if (stream.is_dry()) return;
  Launch(stream.device())->pick_numbers(numbers, index, picked, stream);
}

void order_by_expert(const Tensor& experts_TK, const Tensor& offsets_E1, const Tensor& token_R,
                     const Tensor& row_TK, Stream& stream) {
  check_choices(experts_TK, {&row_TK});
  check_flat({&experts_TK, &token_R});
  check_like(token_R, token_R.shape(), DType::i32);
  check_like(offsets_E1, offsets_E1.shape(), DType::i32);
  if (stream.is_dry()) return;
  Launch(stream.device())->order_by_expert(experts_TK, offsets_E1, token_R, row_TK, stream);
}

void held_offsets(const Tensor& offsets_E1, std::int64_t first, std::int64_t held,
                  const Tensor& held_E1, Stream& stream) {
  check_flat({&offsets_E1, &held_E1});
  for (const Tensor* t : {&offsets_E1, &held_E1}) check_like(*t, offsets_E1.shape(), DType::i32);
  if (stream.is_dry()) return;
  Launch(stream.device())->held_offsets(offsets_E1, first, held, held_E1, stream);
}

void spread_rows(const Tensor& x_TD, const Tensor& row_TK, const Tensor& rows_RD, Stream& stream) {
  check_choices(row_TK, {});
  check_like(x_TD, {row_TK.size(0), rows_RD.size(1)}, rows_RD.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())->spread_rows(x_TD, row_TK, rows_RD, stream);
}

void combine_rows(const Tensor& rows_RD, const Tensor& row_TK, const Tensor& weights_TK,
                  const Tensor& addend_TD, const Tensor& y_TD, Stream& stream) {
  check_choices(row_TK, {});
  if (weights_TK.defined()) check_like(weights_TK, row_TK.shape(), wide_of(rows_RD.dtype()));
  if (addend_TD.defined()) check_like(addend_TD, y_TD.shape(), y_TD.dtype());
  check_like(y_TD, {row_TK.size(0), rows_RD.size(1)}, rows_RD.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())->combine_rows(rows_RD, row_TK, weights_TK, addend_TD, y_TD, stream);
}

void expert_swiglu_backward(const Tensor& dy_RF, const Tensor& gate_up_RG, const Tensor& row_TK,
                            const Tensor& weights_TK, const Tensor& dgate_up_RG, const Tensor& y_RF,
                            const Tensor& dweights_TK, Stream& stream) {
  check_expert_gradients(dy_RF, gate_up_RG, row_TK, weights_TK, dgate_up_RG, y_RF, dweights_TK);
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->expert_swiglu_backward(dy_RF, gate_up_RG, row_TK, weights_TK, dgate_up_RG, y_RF,
                               dweights_TK, stream);
}

void grouped_gemm(const Tensor& a_RK, const Tensor& b_EXX, Transpose transpose_b,
                  const Tensor& offsets_E1, const Tensor& c_RN, Stream& stream) {
  check_groups(b_EXX, offsets_E1);
  if (b_EXX.size(0) > 0) check_product(a_RK, Transpose::no, b_EXX.select(0, 0), transpose_b, c_RN);
  if (stream.is_dry()) return;
  Launch(stream.device())->grouped_gemm(a_RK, b_EXX, transpose_b, offsets_E1, c_RN, stream);
}

void grouped_gemm_weight(const Tensor& a_RM, const Tensor& b_RN, const Tensor& offsets_E1,
                         double beta, const Tensor& c_EMN, Stream& stream) {
  check_groups(c_EMN, offsets_E1);
  if (c_EMN.size(0) > 0) {
    check_product(a_RM, Transpose::yes, b_RN, Transpose::no, c_EMN.select(0, 0));
  }
  if (stream.is_dry()) return;
  Launch(stream.device())->grouped_gemm_weight(a_RM, b_RN, offsets_E1, beta, c_EMN, stream);
}

void grouped_gemm_weight_part(const Tensor& a_PM, const Tensor& b_PN, const Tensor& offsets_E1,
                              std::int64_t first, double beta, const Tensor& c_EMN,
                              Stream& stream) {
  check_groups(c_EMN, offsets_E1);
  if (c_EMN.size(0) > 0) {
    check_product(a_PM, Transpose::yes, b_PN, Transpose::no, c_EMN.select(0, 0));
  }
  HEDDLE_CHECK(first >= 0, "a part from row {} on", first);
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->grouped_gemm_weight_part(a_PM, b_PN, offsets_E1, first, beta, c_EMN, stream);
}

void grouped_swiglu(const Tensor& x_RI, const Tensor& w_EGI, const Tensor& offsets_E1,
                    const Tensor& gate_up_RG, const Tensor& y_RF, Stream& stream) {
  check_groups(w_EGI, offsets_E1);
  if (w_EGI.size(0) > 0) {
    check_product(x_RI, Transpose::no, w_EGI.select(0, 0), Transpose::yes, gate_up_RG);
  }
  check_swiglu_of_product(gate_up_RG, y_RF);
  if (stream.is_dry()) return;
  Launch(stream.device())->grouped_swiglu(x_RI, w_EGI, offsets_E1, gate_up_RG, y_RF, stream);
}

void grouped_swiglu_backward(const Tensor& dout_RO, const Tensor& w_EOF, const Tensor& offsets_E1,
                             const Tensor& gate_up_RG, const Tensor& row_TK,
                             const Tensor& weights_TK, const Tensor& scratch_RF,
                             const Tensor& dgate_up_RG, const Tensor& y_RF,
                             const Tensor& dweights_TK, Stream& stream) {
  check_groups(w_EOF, offsets_E1);
  if (w_EOF.size(0) > 0) {
    check_product(dout_RO, Transpose::no, w_EOF.select(0, 0), Transpose::no, scratch_RF);
  }
  check_expert_gradients(scratch_RF, gate_up_RG, row_TK, weights_TK, dgate_up_RG, y_RF,
                         dweights_TK);
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->grouped_swiglu_backward(dout_RO, w_EOF, offsets_E1, gate_up_RG, row_TK, weights_TK,
                                scratch_RF, dgate_up_RG, y_RF, dweights_TK, stream);
}

void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, GemmScale scale, Stream& stream) {
  check_product(a, transpose_a, b, transpose_b, c);
  if (stream.is_dry()) return;
  Launch(stream.device())->gemm(a, transpose_a, b, transpose_b, c, scale, stream);
}

void gemm_add(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
              const Tensor& bias_N, const Tensor& addend_MN, const Tensor& c, Stream& stream) {
  check_product(a, transpose_a, b, transpose_b, c);
  check_added(c, bias_N, addend_MN);
  if (stream.is_dry()) return;
  Launch(stream.device())->gemm_add(a, transpose_a, b, transpose_b, bias_N, addend_MN, c, stream);
}

void gemm_swiglu(const Tensor& x_TI, const Tensor& w_GI, const Tensor& gate_up_TG,
                 const Tensor& y_TF, Stream& stream) {
  check_product(x_TI, Transpose::no, w_GI, Transpose::yes, gate_up_TG);
  check_swiglu_of_product(gate_up_TG, y_TF);
  if (stream.is_dry()) return;
  Launch(stream.device())->gemm_swiglu(x_TI, w_GI, gate_up_TG, y_TF, stream);
}

void gemm_swiglu_backward(const Tensor& dout_TO, const Tensor& w_OF, const Tensor& dy_TF,
                          const Tensor& gate_up_TG, const Tensor& dgate_up_TG, const Tensor& y_TF,
                          Stream& stream) {
  check_product(dout_TO, Transpose::no, w_OF, Transpose::no, dy_TF);
  check_like(dy_TF, y_TF.shape(), y_TF.dtype());
  for (const Tensor* t : {&gate_up_TG, &dgate_up_TG}) check_swiglu_of_product(*t, y_TF);
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->gemm_swiglu_backward(dout_TO, w_OF, dy_TF, gate_up_TG, dgate_up_TG, y_TF, stream);
}

std::string gemm_backend(Device device) { return Launch(device)->gemm_backend(device); }

void rms_norm_forward(const Tensor& x, const Tensor& w_D, double eps, const Tensor& y,
                      const Tensor& rstd, Stream& stream) {
  check_norm(x, {.weights = {&w_D}, .gradients = {}, .statistics = {&rstd}});
  if (stream.is_dry()) return;
  Launch(stream.device())->rms_norm_forward(x, w_D, eps, y, rstd, stream);
}

void rms_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D,
                             const Tensor& rstd, const Tensor& dx, Stream& stream) {
  check_norm(x, {.weights = {&w_D}, .gradients = {}, .statistics = {&rstd}});
  if (stream.is_dry()) return;
  Launch(stream.device())->rms_norm_backward_input(dy, x, w_D, rstd, dx, stream);
}

void rms_norm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dw_D, Stream& stream) {
  check_norm(x, {.weights = {}, .gradients = {&dw_D}, .statistics = {&rstd}});
  if (stream.is_dry()) return;
  Launch(stream.device())->rms_norm_backward_weight(dy, x, rstd, dw_D, stream);
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& rstd,
                       const Tensor& addend, const Tensor& dx, const Tensor& dw_D, Stream& stream) {
  check_norm(x, {.weights = {&w_D}, .gradients = {&dw_D}, .statistics = {&rstd}});
  if (stream.is_dry()) return;
  Launch(stream.device())->rms_norm_backward(dy, x, w_D, rstd, addend, dx, dw_D, stream);
}

void layer_norm_forward(const Tensor& x, const Tensor& w_D, const Tensor& b_D, double eps,
                        const Tensor& y, const Tensor& mean, const Tensor& rstd, Stream& stream) {
  check_norm(x, {.weights = {&w_D, &b_D}, .gradients = {}, .statistics = {&mean, &rstd}});
  if (stream.is_dry()) return;
  Launch(stream.device())->layer_norm_forward(x, w_D, b_D, eps, y, mean, rstd, stream);
}

void layer_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                               Stream& stream) {
  check_norm(x, {.weights = {&w_D}, .gradients = {}, .statistics = {&mean, &rstd}});
  if (stream.is_dry()) return;
  Launch(stream.device())->layer_norm_backward_input(dy, x, w_D, mean, rstd, dx, stream);
}

void layer_norm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dw_D, const Tensor& db_D,
                                Stream& stream) {
  check_norm(x, {.weights = {}, .gradients = {&dw_D, &db_D}, .statistics = {&mean, &rstd}});
  if (stream.is_dry()) return;
  Launch(stream.device())->layer_norm_backward_weight(dy, x, mean, rstd, dw_D, db_D, stream);
}

void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& mean,
                         const Tensor& rstd, const Tensor& addend, const Tensor& dx,
                         const Tensor& dw_D, const Tensor& db_D, Stream& stream) {
  check_norm(x, {.weights = {&w_D}, .gradients = {&dw_D, &db_D}, .statistics = {&mean, &rstd}});
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->layer_norm_backward(dy, x, w_D, mean, rstd, addend, dx, dw_D, db_D, stream);
}

void fill_normal(const Tensor& y, std::uint64_t key, std::uint64_t first_index, double stddev,
                 Stream& stream) {
  check_flat({&y});
  if (stream.is_dry()) return;
  Launch(stream.device())->fill_normal(y, key, first_index, stddev, stream);
}

namespace {

void check_dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI) {
  check_like(x_TI, y_TI.shape(), y_TI.dtype());
  HEDDLE_CHECK(mask.rate >= 0.0 && mask.rate < 1.0, "a dropout rate of {}", mask.rate);
  HEDDLE_CHECK(mask.first_column >= 0 && mask.first_column + x_TI.size(1) <= mask.columns,
               "columns {} and {} more of {}", mask.first_column, x_TI.size(1), mask.columns);
  HEDDLE_CHECK(!mask.rows_T.defined() ||
                   (mask.rows_T.count() == x_TI.size(0) && mask.rows_T.dtype() == DType::i64),
               "numbers of other rows");
}

}  // namespace

void dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream) {
  check_dropout(x_TI, mask, y_TI);
  if (stream.is_dry()) return;
  Launch(stream.device())->dropout(x_TI, mask, y_TI, stream);
}

void add_dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream) {
  check_dropout(x_TI, mask, y_TI);
  if (stream.is_dry()) return;
  Launch(stream.device())->add_dropout(x_TI, mask, y_TI, stream);
}

double sum_of_squares(const Tensor& x, Stream& stream) {
  check_flat({&x});
  if (stream.is_dry()) return 0.0;
  return Launch(stream.device())->sum_of_squares(x, stream);
}

void add_sum_of_squares(const Tensor& x, const Tensor& sum, Stream& stream) {
  check_flat({&x});
  if (stream.is_dry()) return;
  Launch(stream.device())->add_sum_of_squares(x, sum, stream);
}

void clip_factor(const Tensor& sums, double limit, const Tensor& factor, Stream& stream) {
  if (stream.is_dry()) return;
  Launch(stream.device())->clip_factor(sums, limit, factor, stream);
}

void divide_by_norm(const Tensor& x, const Tensor& sum, double least, Stream& stream) {
  check_flat({&x});
  if (stream.is_dry()) return;
  Launch(stream.device())->divide_by_norm(x, sum, least, stream);
}

void add_sum(const Tensor& x, const Tensor& sum, Stream& stream) {
  check_flat({&x});
  if (stream.is_dry()) return;
  Launch(stream.device())->add_sum(x, sum, stream);
}

std::int64_t first_non_finite(const Tensor& x, Stream& stream) {
  check_flat({&x});
  HEDDLE_CHECK(is_floating(x.dtype()), "search in {}", name_of(x.dtype()));
  if (stream.is_dry()) return -1;
  return Launch(stream.device())->first_non_finite(x, stream);
}

void mark_non_finite(const Tensor& x, const Tensor& mark, Stream& stream) {
  check_flat({&x});
  HEDDLE_CHECK(is_floating(x.dtype()) && mark.dtype() == DType::f64 && mark.count() == 1,
               "search in {}", name_of(x.dtype()));
  if (stream.is_dry() || x.count() == 0) return;
  Launch(stream.device())->mark_non_finite(x, mark, stream);
}

void rope(const Tensor& x_BSHK, const Tensor& positions_BS, const Tensor& cos_PR,
          const Tensor& sin_PR, RopePairs pairs, bool inverse, Stream& stream) {
  check_rotation(x_BSHK, positions_BS, cos_PR, sin_PR);
  if (stream.is_dry()) return;
  Launch(stream.device())->rope(x_BSHK, positions_BS, cos_PR, sin_PR, pairs, inverse, stream);
}

void cross_entropy_forward(const Tensor& logits_TV, const Tensor& targets_T, const Tensor& loss_T,
                           Stream& stream) {
  check_rows(logits_TV, {&targets_T, &loss_T});
  if (stream.is_dry()) return;
  Launch(stream.device())->cross_entropy_forward(logits_TV, targets_T, loss_T, stream);
}

void cross_entropy_forward_backward(const Tensor& logits_TV, const Tensor& targets_T,
                                    double grad_scale, const Tensor& loss_T, Stream& stream) {
  check_rows(logits_TV, {&targets_T, &loss_T});
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->cross_entropy_forward_backward(logits_TV, targets_T, grad_scale, loss_T, stream);
}

void row_max(const Tensor& logits_TV, std::int64_t valid, const Tensor& max_T, Stream& stream) {
  check_rows(logits_TV, {&max_T});
  if (stream.is_dry()) return;
  Launch(stream.device())->row_max(logits_TV, valid, max_T, stream);
}

void row_exponentials(const Tensor& logits_TV, std::int64_t valid, const Tensor& targets_T,
                      std::int64_t first, const Tensor& max_T, const Tensor& sum_T,
                      const Tensor& chosen_T, Stream& stream) {
  check_rows(logits_TV, {&targets_T, &max_T, &sum_T, &chosen_T});
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->row_exponentials(logits_TV, valid, targets_T, first, max_T, sum_T, chosen_T, stream);
}

void softmax_gradient(const Tensor& exponentials_TV, const Tensor& targets_T, std::int64_t first,
                      const Tensor& sum_T, double grad_scale, Stream& stream) {
  check_rows(exponentials_TV, {&targets_T, &sum_T});
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->softmax_gradient(exponentials_TV, targets_T, first, sum_T, grad_scale, stream);
}

void row_loss(const Tensor& sum_T, const Tensor& chosen_T, const Tensor& targets_T,
              const Tensor& loss_T, Stream& stream) {
  check_flat({&loss_T, &sum_T, &chosen_T, &targets_T});
  if (stream.is_dry()) return;
  Launch(stream.device())->row_loss(sum_T, chosen_T, targets_T, loss_T, stream);
}

void merge_row_statistics(const Tensor& statistics_N3T, const Tensor& targets_T,
                          std::int64_t rows_per_holder, std::int64_t own, const Tensor& divisor_T,
                          const Tensor& loss_T, Stream& stream) {
  check_flat({&targets_T, &divisor_T, &loss_T});
  check_like(statistics_N3T, {statistics_N3T.size(0), 3, targets_T.count()}, divisor_T.dtype());
  if (stream.is_dry()) return;
  Launch(stream.device())
      ->merge_row_statistics(statistics_N3T, targets_T, rows_per_holder, own, divisor_T, loss_T,
                             stream);
}

void divide_rows(const Tensor& y_TD, const Tensor& divisor_T, Stream& stream) {
  check_rows(y_TD, {&divisor_T});
  if (stream.is_dry()) return;
  Launch(stream.device())->divide_rows(y_TD, divisor_T, stream);
}

}  // namespace heddle::ops
