#pragma once

#include "ops/cuda/stream_state.h"
#include "tensor/tensor.h"

namespace heddle::ops::cuda {

/// Ids in the order of their values, equal ones in the order they had. All of it lies in the
/// stream's workspace.
struct SortedIds {
  const std::uint32_t* keys;      ///< the ids; `rows` where one is absent, so these come last
  const std::int32_t* positions;  ///< where each was
  std::byte* extra;               ///< room that the caller asked for
};

/// Of ids i32 in [0, rows) or absent.
SortedIds sort_ids(const Tensor& ids, std::int64_t rows, std::size_t extra_bytes,
                   StreamState& state);

}  // namespace heddle::ops::cuda
