#pragma once

#include "ops/attention.h"

namespace heddle::ops {

/// Calls `body(begin, end, mask)` for the queries before and behind a mask's jump, whose masks have
/// none: for kernels that do not know it.
template <class Body>
void for_each_stretch(const AttentionMask& mask, std::int64_t queries, const Body& body) {
  AttentionMask stretch = mask;
  stretch.jump = stretch.jump_at = 0;
  body(std::int64_t{0}, mask.jump_at, stretch);
  stretch.query_offset += mask.jump_at + mask.jump;
  body(mask.jump_at, queries, stretch);
}

}  // namespace heddle::ops
