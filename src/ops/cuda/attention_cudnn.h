#pragma once

#include "ops/attention.h"

namespace heddle::ops::cuda {

// cuDNN's attention, for bf16 and the plain causal mask or a window, capped or not. Both return
// false, having done nothing, where cuDNN does not take these sizes, strides or alignments.

bool cudnn_attention_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                             const AttentionMask& mask, const ScoreRule& rule,
                             const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream);

bool cudnn_attention_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BSGK,
                              const Tensor& v_BSGK, const Tensor& out_BSHK, const Tensor& lse_BHS,
                              const AttentionMask& mask, const ScoreRule& rule,
                              const Tensor& dq_BSHK, const Tensor& dk_BSGK, const Tensor& dv_BSGK,
                              Stream& stream);

}  // namespace heddle::ops::cuda
