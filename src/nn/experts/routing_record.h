#pragma once

#include "tensor/tensor.h"

namespace heddle {

/// Takes down which experts the tokens of a micro-batch get, for who asks (Ctx::routing).
struct RoutingRecord {
  /// i32 in host memory, [tokens, layers with experts, choices]: 1 + the expert, 0 where there is
  /// none. Tokens are those of the micro-batch that ranks share, wherever their rank: each writes
  /// what its routers choose and leaves the rest, so that the sum over ranks is all of it.
  Tensor taken_TLK;
};

}  // namespace heddle
