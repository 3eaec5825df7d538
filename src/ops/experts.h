#pragma once

#include "ops/gemm.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

// A mixture of experts: T tokens choose K of E experts each, and the R = T K choices become rows,
// sorted by expert (docs/design/040-experts.md). Integers are i32; logits, weights and their
// gradients are in the dtype of statistics, f32 or f64, and lie contiguously. Where a choice or a
// row is absent its index is kAbsentRow (ops/embedding.h).

/// How a router chooses and weighs.
struct RouterRule {
  enum class Score : std::uint8_t { softmax, sigmoid };
  Score score = Score::softmax;
  /// Weights are divided by their sum over the chosen ones: of softmax, that is the softmax of the
  /// chosen logits.
  bool renormalize = true;
  double scale = 1.0;  ///< weights are multiplied by it
  /// Above 1: experts are divided into so many groups of neighbours, and only those of the best
  /// `kept_groups` are chosen from. A group counts as the sum of its two best scores with a bias,
  /// as its best without.
  std::int64_t groups = 1, kept_groups = 1;
};

/// For every token the K experts with the highest scores, the highest first; of equal ones the
/// lower index. bias_E, where given, is added to scores for choosing and not for weighing. A NaN
/// counts as less than any number.
void route(const Tensor& logits_TE, const RouterRule& rule, const Tensor& bias_E,
           const Tensor& experts_TK, const Tensor& weights_TK, Stream& stream);
/// The gradient of the logits from that of the weights; the choice has none.
void route_backward(const Tensor& dweights_TK, const Tensor& logits_TE, const RouterRule& rule,
                    const Tensor& experts_TK, const Tensor& dlogits_TE, Stream& stream);

/// counts[e] = choices of expert e; the last element is the number of tokens. In the dtype of
/// weights, in which they are exact up to 2^24.
void count_choices(const Tensor& experts_TK, const Tensor& counts_E1, Stream& stream);

/// Losses of a token that keep a router in shape, by what they are multiplied with.
struct RouterLoss {
  double balance = 0.0;  ///< E sum_e f_e p_e: f the share of tokens that chose e, p its score
  double z = 0.0;        ///< the squared logarithm of the sum of exponentials of its logits
};
/// dlogits += their gradient. p is the softmax, or scores divided by their sum; f = counts /
/// tokens, a constant.
void router_loss_backward(const Tensor& logits_TE, const RouterRule& rule, const Tensor& counts_E1,
                          const RouterLoss& loss, const Tensor& dlogits_TE, Stream& stream);

/// Sorts the choices by expert, then token, then slot. Expert e has the rows [offsets[e],
/// offsets[e + 1]); row r is of token token_R[r]; choice (t, k) is row row_TK[t, k].
void order_by_expert(const Tensor& experts_TK, const Tensor& offsets_E1, const Tensor& token_R,
                     const Tensor& row_TK, Stream& stream);

/// Where the rows of each expert begin among rows [first, first + held) alone; an expert that has
/// none there begins where it would.
void held_offsets(const Tensor& offsets_E1, std::int64_t first, std::int64_t held,
                  const Tensor& held_E1, Stream& stream);

/// picked[i] = numbers[index[i]], all i32; absent where the index is.
void pick_numbers(const Tensor& numbers, const Tensor& index, const Tensor& picked, Stream& stream);

/// rows[row_TK[t, k]] = x_t. Rows of no choice are left alone.
void spread_rows(const Tensor& x_TD, const Tensor& row_TK, const Tensor& rows_RD, Stream& stream);

/// y_t = addend_t + the sum over slots, in their order, of weight times row; absent rows are left
/// out. Weights and addend may be absent; y is not the addend.
void combine_rows(const Tensor& rows_RD, const Tensor& row_TK, const Tensor& weights_TK,
                  const Tensor& addend_TD, const Tensor& y_TD, Stream& stream);

/// Backward of weight * down(silu(gate) * up) behind the product with down: dy_RF is the gradient
/// of its input without the weight. dgate_up_RG, which may be gate_up_RG, has the gate's half
/// first; y_RF = weight * silu(gate) * up, what down's own gradient needs; dweights_TK = dy .
/// silu(gate) * up. Rows of no choice are left alone.
void expert_swiglu_backward(const Tensor& dy_RF, const Tensor& gate_up_RG, const Tensor& row_TK,
                            const Tensor& weights_TK, const Tensor& dgate_up_RG, const Tensor& y_RF,
                            const Tensor& dweights_TK, Stream& stream);

/// c's rows of each expert = a's rows times op(b_e), b_EXX the experts' matrices one after the
/// other. Rows of no expert are left alone.
void grouped_gemm(const Tensor& a_RK, const Tensor& b_EXX, Transpose transpose_b,
                  const Tensor& offsets_E1, const Tensor& c_RN, Stream& stream);
/// c_e = a_e^T b_e + beta * c_e over the expert's rows; an expert without rows has beta * c_e.
void grouped_gemm_weight(const Tensor& a_RM, const Tensor& b_RN, const Tensor& offsets_E1,
                         double beta, const Tensor& c_EMN, Stream& stream);
/// Its share by rows [first, first + P) of those that offsets are of. With the same beta for all
/// parts, of which the first comes first, the same sums; what no rows of a part are for is neither
/// read nor written by it.
void grouped_gemm_weight_part(const Tensor& a_PM, const Tensor& b_PN, const Tensor& offsets_E1,
                              std::int64_t first, double beta, const Tensor& c_EMN, Stream& stream);

/// gate_up = grouped_gemm of x and the experts' w_GI^T, the gate's half first, and y = silu(gate) *
/// up; rows of y that are of no expert may be anything.
void grouped_swiglu(const Tensor& x_RI, const Tensor& w_EGI, const Tensor& offsets_E1,
                    const Tensor& gate_up_RG, const Tensor& y_RF, Stream& stream);
/// expert_swiglu_backward of dy = grouped_gemm of dout and the experts' w_OF. Rows of an expert are
/// of one choice each. scratch_RF may be anything then: dy, where the product does not go through
/// SwiGLU at once. On a GPU it may be y_RF.
void grouped_swiglu_backward(const Tensor& dout_RO, const Tensor& w_EOF, const Tensor& offsets_E1,
                             const Tensor& gate_up_RG, const Tensor& row_TK,
                             const Tensor& weights_TK, const Tensor& scratch_RF,
                             const Tensor& dgate_up_RG, const Tensor& y_RF,
                             const Tensor& dweights_TK, Stream& stream);

}  // namespace heddle::ops
