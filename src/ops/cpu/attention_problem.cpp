#include "ops/cpu/attention_problem.h"

#include <algorithm>

#include "base/check.h"
#include "ops/backend.h"

namespace heddle::ops::cpu {

AttentionProblem::AttentionProblem(const Tensor& q_BSHK, const Tensor& k_BTGK,
                                   const AttentionMask& mask, const ScoreRule& rule)
    : batch(q_BSHK.size(0)),
      queries(q_BSHK.size(1)),
      keys(k_BTGK.size(1)),
      heads(q_BSHK.size(2)),
      groups(k_BTGK.size(2)),
      width(q_BSHK.size(3)),
      query_offset(mask.last_key()),
      rule(rule),
      key_offset_(mask.key_offset),
      step_(mask.step) {
  // Numbers of keys are compared as f32.
  HEDDLE_CHECK(keys < (std::int64_t{1} << 24), "{} keys", keys);
  if (mask.first_key_BS.defined()) {
    document_start_ = mask.first_key_BS.data<std::int32_t>();
    document_stride_ = mask.first_key_BS.stride(0);
  }
}

void window_first_keys(const AttentionMask& mask, std::int64_t window, const Tensor& first_key_BS,
                       Stream&) {
  const std::int64_t queries = first_key_BS.size(1);
  std::int32_t* const first = first_key_BS.data<std::int32_t>();
  for (std::int64_t i = 0; i < first_key_BS.count(); ++i) {
    const std::int64_t b = i / queries, s = i % queries;
    const std::int64_t of_window = std::max<std::int64_t>(mask.query_offset + s + 1 - window, 0);
    std::int64_t of_document = 0;
    if (mask.first_key_BS.defined()) {
      of_document = mask.first_key_BS.data<std::int32_t>()[b * mask.first_key_BS.stride(0) + s];
    }
    first[i] = static_cast<std::int32_t>(std::max(of_window, of_document));
  }
}

}  // namespace heddle::ops::cpu
