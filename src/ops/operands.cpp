#include "ops/operands.h"

#include "base/check.h"

namespace heddle::ops {

void check_like(const Tensor& t, const Shape& shape, DType dtype) {
  HEDDLE_CHECK(t.shape() == shape && t.dtype() == dtype, "{} {} where {} {} is wanted",
               name_of(t.dtype()), t.shape().text(), name_of(dtype), shape.text());
}

void check_flat(std::initializer_list<const Tensor*> tensors) {
  const Tensor& first = **tensors.begin();
  for (const Tensor* t : tensors) {
    HEDDLE_CHECK(!t->defined() || (t->is_contiguous() && t->count() == first.count()),
                 "{}, which must be contiguous and as long as {}", t->shape().text(),
                 first.shape().text());
  }
}

void check_choices(const Tensor& choices_TK, std::initializer_list<const Tensor*> others_TK) {
  HEDDLE_CHECK(choices_TK.dims() == 2, "choices of tokens in {}", choices_TK.shape().text());
  check_like(choices_TK, choices_TK.shape(), DType::i32);
  check_flat({&choices_TK});
  for (const Tensor* t : others_TK) {
    check_like(*t, choices_TK.shape(), DType::i32);
    check_flat({t});
  }
}

void check_routing(const Tensor& logits_TE, const RouterRule& rule, const Tensor& experts_TK,
                   const Tensor& weights_TK) {
  check_choices(experts_TK, {});
  check_like(weights_TK, experts_TK.shape(), logits_TE.dtype());
  check_flat({&experts_TK, &weights_TK});
  check_flat({&logits_TE});
  const std::int64_t experts = logits_TE.size(1), chosen = experts_TK.size(1);
  HEDDLE_CHECK(logits_TE.dims() == 2 && logits_TE.size(0) == experts_TK.size(0),
               "logits {} for choices {}", logits_TE.shape().text(), experts_TK.shape().text());
  HEDDLE_CHECK(rule.groups >= 1 && experts % rule.groups == 0 && rule.kept_groups >= 1 &&
                   rule.kept_groups <= rule.groups &&
                   chosen <= experts / rule.groups * rule.kept_groups,
               "{} of {} experts in {} groups, of which {} are kept", chosen, experts, rule.groups,
               rule.kept_groups);
}

void check_expert_gradients(const Tensor& dy_RF, const Tensor& gate_up_RG, const Tensor& row_TK,
                            const Tensor& weights_TK, const Tensor& dgate_up_RG, const Tensor& y_RF,
                            const Tensor& dweights_TK) {
  check_choices(row_TK, {});
  for (const Tensor* t : {&weights_TK, &dweights_TK}) {
    check_like(*t, row_TK.shape(), wide_of(dy_RF.dtype()));
  }
  check_flat({&row_TK, &weights_TK, &dweights_TK});
  check_like(y_RF, dy_RF.shape(), dy_RF.dtype());
  for (const Tensor* t : {&gate_up_RG, &dgate_up_RG}) check_swiglu_of_product(*t, dy_RF);
}

void check_groups(const Tensor& matrices_EXX, const Tensor& offsets_E1) {
  HEDDLE_CHECK(matrices_EXX.dims() == 3, "matrices of experts in {}", matrices_EXX.shape().text());
  check_like(offsets_E1, {matrices_EXX.size(0) + 1}, DType::i32);
  check_flat({&offsets_E1});
}

void check_rows(const Tensor& x_TV, std::initializer_list<const Tensor*> vectors_T) {
  for (const Tensor* t : vectors_T) {
    HEDDLE_CHECK(x_TV.dims() == 2 && t->shape() == Shape{x_TV.size(0)} && t->is_contiguous(),
                 "{} for the rows of {}", t->shape().text(), x_TV.shape().text());
  }
}

void check_product(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                   const Tensor& c) {
  HEDDLE_CHECK(a.dims() == 2 && b.dims() == 2 && c.dims() == 2, "a product of {}, {} into {}",
               a.shape().text(), b.shape().text(), c.shape().text());
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  HEDDLE_CHECK(a.size(ta ? 1 : 0) == c.size(0) && b.size(tb ? 1 : 0) == a.size(ta ? 0 : 1) &&
                   b.size(tb ? 0 : 1) == c.size(1),
               "a product of {}{}, {}{} into {}", a.shape().text(), ta ? "^T" : "",
               b.shape().text(), tb ? "^T" : "", c.shape().text());
  HEDDLE_CHECK(
      a.dtype() == b.dtype() && (c.dtype() == a.dtype() || c.dtype() == wide_of(a.dtype())),
      "a product of {}, {} into {}", name_of(a.dtype()), name_of(b.dtype()), name_of(c.dtype()));
}

void check_added(const Tensor& c_MN, const Tensor& bias_N, const Tensor& addend_MN) {
  if (bias_N.defined()) check_bias(c_MN, bias_N, c_MN.dtype());
  if (addend_MN.defined()) check_like(addend_MN, c_MN.shape(), c_MN.dtype());
}

void check_swiglu_of_product(const Tensor& gate_up_TG, const Tensor& y_TF) {
  HEDDLE_CHECK(y_TF.dims() == 2, "SwiGLU into {}", y_TF.shape().text());
  check_like(gate_up_TG, {y_TF.size(0), 2 * y_TF.size(1)}, y_TF.dtype());
}

void check_attention_block(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                           const AttentionMask& mask) {
  HEDDLE_CHECK(q_BSHK.dims() == 4 && k_BTGK.dims() == 4, "q {}, k {}", q_BSHK.shape().text(),
               k_BTGK.shape().text());
  const std::int64_t batch = q_BSHK.size(0), queries = q_BSHK.size(1), heads = q_BSHK.size(2);
  const std::int64_t keys = k_BTGK.size(1), groups = k_BTGK.size(2), width = q_BSHK.size(3);
  for (const Tensor* t : {&k_BTGK, &v_BTGK}) {
    check_like(*t, {batch, keys, groups, width}, q_BSHK.dtype());
  }
  HEDDLE_CHECK(groups > 0 && heads % groups == 0, "{} query heads, {} key heads", heads, groups);
  HEDDLE_CHECK(mask.query_offset >= 0 && mask.key_offset >= 0 && mask.step >= 1,
               "queries from position {} and keys from {}, in steps of {}", mask.query_offset,
               mask.key_offset, mask.step);
  if (mask.first_key_BS.defined()) check_like(mask.first_key_BS, {batch, queries}, DType::i32);
  const bool can_jump =
      mask.step == 1 && !mask.first_key_BS.defined() && mask.jump_at > 0 && mask.jump_at < queries;
  HEDDLE_CHECK(mask.jump == 0 || (mask.jump > 0 && can_jump),
               "{} queries that jump by {} at {}, in steps of {}", queries, mask.jump, mask.jump_at,
               mask.step);
}

void check_attention_rows(const Tensor& rows_BSHK, const Shape& shape, DType dtype,
                          std::initializer_list<const Tensor*> statistics_BHS) {
  HEDDLE_CHECK(shape.dims() == 4, "attention of {}", shape.text());
  check_like(rows_BSHK, shape, dtype);
  for (const Tensor* t : statistics_BHS) {
    check_like(*t, {shape[0], shape[2], shape[1]}, wide_of(dtype));
  }
}

void check_attention(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                     const AttentionMask& mask, const Tensor& out_BSHK, const Tensor& lse_BHS) {
  check_attention_block(q_BSHK, k_BTGK, v_BTGK, mask);
  check_attention_rows(out_BSHK, q_BSHK.shape(), q_BSHK.dtype(), {&lse_BHS});
  const std::int64_t queries = q_BSHK.size(1), keys = k_BTGK.size(1);
  HEDDLE_CHECK(mask.key_offset == 0 && mask.step == 1 && mask.jump == 0 &&
                   keys >= mask.query_offset + queries,
               "{} keys from {} for {} queries after {}, in steps of {}", keys, mask.key_offset,
               queries, mask.query_offset, mask.step);
  HEDDLE_CHECK(lse_BHS.is_contiguous(), "a strided lse {}", lse_BHS.shape().text());
}

void check_norm(const Tensor& x, const NormOperands& operands) {
  const Shape vector{x.size(-1)};
  for (const Tensor* t : operands.weights) check_like(*t, vector, x.dtype());
  for (const Tensor* t : operands.gradients) check_like(*t, vector, wide_of(x.dtype()));
  const std::int64_t rows = x.size(-1) == 0 ? 0 : x.count() / x.size(-1);
  for (const Tensor* t : operands.statistics) {
    HEDDLE_CHECK(t->dtype() == wide_of(x.dtype()) && t->is_contiguous() && t->count() == rows,
                 "statistics {} {} for a norm of {}", name_of(t->dtype()), t->shape().text(),
                 x.shape().text());
  }
}

void check_bias(const Tensor& y_TN, const Tensor& b_N, DType dtype) {
  HEDDLE_CHECK(y_TN.dims() == 2 && b_N.shape() == Shape({y_TN.size(1)}) && b_N.dtype() == dtype,
               "a bias {} {} for {} {}", name_of(b_N.dtype()), b_N.shape().text(),
               name_of(y_TN.dtype()), y_TN.shape().text());
}

void check_rotation(const Tensor& x_BSHK, const Tensor& positions_BS, const Tensor& cos_PR,
                    const Tensor& sin_PR) {
  HEDDLE_CHECK(x_BSHK.dims() == 4 && cos_PR.dims() == 2 && 2 * cos_PR.size(1) <= x_BSHK.size(3) &&
                   cos_PR.dtype() == wide_of(x_BSHK.dtype()) &&
                   cos_PR.stride(0) == sin_PR.stride(0),
               "rotation of {} {} by tables of {} {}", name_of(x_BSHK.dtype()),
               x_BSHK.shape().text(), name_of(cos_PR.dtype()), cos_PR.shape().text());
  check_like(sin_PR, cos_PR.shape(), cos_PR.dtype());
  check_like(positions_BS, {x_BSHK.size(0), x_BSHK.size(1)}, DType::i32);
}

void check_embedding(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD, DType dtype) {
  HEDDLE_CHECK(table_VD.dims() == 2 && y_TD.dims() == 2 && y_TD.size(1) == table_VD.size(1) &&
                   y_TD.size(0) == ids_T.count() && ids_T.is_contiguous() &&
                   table_VD.dtype() == dtype,
               "embedding of {} ids between {} {} and {} {}", ids_T.shape().text(),
               name_of(table_VD.dtype()), table_VD.shape().text(), name_of(y_TD.dtype()),
               y_TD.shape().text());
}

}  // namespace heddle::ops
