#include "ops/cpu/attention_problem.h"

#include "base/check.h"

namespace heddle::ops::cpu {

AttentionProblem::AttentionProblem(const Tensor& q_BSHK, const Tensor& k_BTGK,
                                   const AttentionMask& mask, double scale)
    : batch(q_BSHK.size(0)),
      queries(q_BSHK.size(1)),
      keys(k_BTGK.size(1)),
      heads(q_BSHK.size(2)),
      groups(k_BTGK.size(2)),
      width(q_BSHK.size(3)),
      query_offset(mask.last_key()),
      scale(scale),
      key_offset_(mask.key_offset),
      step_(mask.step) {
  // Numbers of keys are compared as f32.
  HEDDLE_CHECK(keys < (std::int64_t{1} << 24), "{} keys", keys);
  if (mask.first_key_BS.defined()) {
    document_start_ = mask.first_key_BS.data<std::int32_t>();
    document_stride_ = mask.first_key_BS.stride(0);
  }
}

}  // namespace heddle::ops::cpu
