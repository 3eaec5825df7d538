#pragma once

#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/frozen_adam.h"
#include "ops/gate.h"
#include "ops/gemm.h"
#include "ops/norm.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/rope.h"
#include "ops/sgd.h"
#include "ops/softmax_xent.h"
#include "ops/split_vocabulary.h"

// The operations of ops/*.h exist once per backend, under the same names and with the same
// signatures, in the namespaces ops::cpu and ops::cuda. The public ones pick the backend by the
// device of their stream (dispatch.cpp).

#define HEDDLE_OPERATIONS(X)        \
  X(swiglu_forward)                 \
  X(swiglu_backward)                \
  X(gelu_forward)                   \
  X(gelu_backward)                  \
  X(adamw)                          \
  X(sgd)                            \
  X(running_mean)                   \
  X(blend)                          \
  X(frozen_adam)                    \
  X(attention_forward)              \
  X(attention_backward)             \
  X(attention_block_forward)        \
  X(attention_merge)                \
  X(attention_delta)                \
  X(attention_block_backward)       \
  X(cast)                           \
  X(fill)                           \
  X(copy)                           \
  X(add)                            \
  X(accumulate)                     \
  X(scale)                          \
  X(add_bias)                       \
  X(bias_backward)                  \
  X(embedding_forward)              \
  X(embedding_add)                  \
  X(embedding_backward)             \
  X(held_rows)                      \
  X(route)                          \
  X(route_backward)                 \
  X(count_choices)                  \
  X(router_loss_backward)           \
  X(weigh_choices)                  \
  X(drop_choices)                   \
  X(add_load)                       \
  X(counts_of_load)                 \
  X(count_by_sequence)              \
  X(balance_bias)                   \
  X(order_by_expert)                \
  X(pick_numbers)                   \
  X(held_offsets)                   \
  X(spread_rows)                    \
  X(combine_rows)                   \
  X(expert_swiglu_backward)         \
  X(grouped_gemm)                   \
  X(grouped_gemm_weight)            \
  X(grouped_gemm_weight_part)       \
  X(grouped_swiglu)                 \
  X(grouped_swiglu_backward)        \
  X(gemm)                           \
  X(gemm_add)                       \
  X(gemm_swiglu)                    \
  X(gemm_swiglu_backward)           \
  X(gemm_backend)                   \
  X(rms_norm_forward)               \
  X(rms_norm_backward_input)        \
  X(rms_norm_backward_weight)       \
  X(rms_norm_backward)              \
  X(layer_norm_forward)             \
  X(layer_norm_backward_input)      \
  X(layer_norm_backward_weight)     \
  X(layer_norm_backward)            \
  X(fill_normal)                    \
  X(dropout)                        \
  X(add_dropout)                    \
  X(sum_of_squares)                 \
  X(add_sum_of_squares)             \
  X(clip_factor)                    \
  X(divide_by_norm)                 \
  X(add_sum)                        \
  X(first_non_finite)               \
  X(mark_non_finite)                \
  X(rope)                           \
  X(window_first_keys)              \
  X(geglu_forward)                  \
  X(geglu_backward)                 \
  X(soft_cap)                       \
  X(soft_cap_backward)              \
  X(cross_entropy_forward)          \
  X(cross_entropy_forward_backward) \
  X(row_max)                        \
  X(row_exponentials)               \
  X(softmax_gradient)               \
  X(row_loss)                       \
  X(merge_row_statistics)           \
  X(divide_rows)

namespace heddle::ops {

/// One backend: a function for every operation.
struct Operations {
#define HEDDLE_MEMBER(name) decltype(&ops::name) name;
  HEDDLE_OPERATIONS(HEDDLE_MEMBER)
#undef HEDDLE_MEMBER
};

const Operations& cpu_operations();
/// Throws Error(resources) in a program built without CUDA.
const Operations& cuda_operations();

#define HEDDLE_DECLARATION(name) decltype(ops::name) name;
namespace cpu {
HEDDLE_OPERATIONS(HEDDLE_DECLARATION)
}  // namespace cpu
namespace cuda {
HEDDLE_OPERATIONS(HEDDLE_DECLARATION)
}  // namespace cuda
#undef HEDDLE_DECLARATION

}  // namespace heddle::ops
