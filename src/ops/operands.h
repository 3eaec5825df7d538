#pragma once

#include <initializer_list>

#include "ops/attention.h"
#include "ops/experts.h"
#include "ops/gemm.h"

namespace heddle::ops {

// What operations want of their operands on every device: shapes and types that fit each other. The
// dispatch asks before a backend sees them, also in a dry run; what only one backend cannot do, and
// what depends on values, it checks itself.

/// The type of sums, statistics and parameter gradients beside values of a type.
inline DType wide_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// c = op(a) op(b).
void check_product(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                   const Tensor& c);
/// Either may be absent.
void check_added(const Tensor& c_MN, const Tensor& bias_N, const Tensor& addend_MN);
void check_swiglu_of_product(const Tensor& gate_up_TG, const Tensor& y_TF);

/// Of whole sequences.
void check_attention(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                     const AttentionMask& mask, const Tensor& out_BSHK, const Tensor& lse_BHS);
void check_attention_block(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                           const AttentionMask& mask);
/// A row for every query and head of `shape`, and statistics of the rows.
void check_attention_rows(const Tensor& rows_BSHK, const Shape& shape, DType dtype,
                          std::initializer_list<const Tensor*> statistics_BHS);

/// A norm over the last dimension of x: weights or biases, their gradients, statistics of rows.
struct NormOperands {
  std::initializer_list<const Tensor*> weights, gradients, statistics;
};
void check_norm(const Tensor& x, const NormOperands& operands);

void check_bias(const Tensor& y_TN, const Tensor& b_N, DType dtype);
void check_rotation(const Tensor& x_BSHK, const Tensor& positions_BS, const Tensor& cos_PR,
                    const Tensor& sin_PR);
/// `dtype` is the table's.
void check_embedding(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD, DType dtype);

/// Choices of tokens [T, K], or their rows, and other integers of the same choices.
void check_choices(const Tensor& choices_TK, std::initializer_list<const Tensor*> others_TK);
/// K of E experts for each token, as the rule wants them; `weights_TK` may be their gradient.
void check_routing(const Tensor& logits_TE, const RouterRule& rule, const Tensor& experts_TK,
                   const Tensor& weights_TK);
/// A matrix for each expert, [E, ., .], and where the experts' rows begin.
void check_groups(const Tensor& matrices_EXX, const Tensor& offsets_E1);

/// Of weight * down(silu(gate) * up), behind the product with down: as expert_swiglu_backward has
/// them.
void check_expert_gradients(const Tensor& dy_RF, const Tensor& gate_up_RG, const Tensor& row_TK,
                            const Tensor& weights_TK, const Tensor& dgate_up_RG, const Tensor& y_RF,
                            const Tensor& dweights_TK);

/// A value for each row of a matrix, contiguous.
void check_rows(const Tensor& x_TV, std::initializer_list<const Tensor*> vectors_T);
/// Flat tensors of equal length; absent ones fit.
void check_flat(std::initializer_list<const Tensor*> tensors);
void check_like(const Tensor& t, const Shape& shape, DType dtype);

}  // namespace heddle::ops
