#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/sequence/context_plan.h"

namespace heddle {

/// How ranks that divide a KV cache attend to it with a new token, whose query all of them have.
enum class DecodeMethod : std::uint8_t {
  tree,   ///< each over its own keys; partial outputs are merged, between near ranks first
  ring,   ///< K and V travel from rank to rank, and each attends to all of them
  gather  ///< K and V of all to all
};
std::span<const std::string_view> decode_method_names();
std::string_view name_of(DecodeMethod method);

/// One layer's attention of one token.
struct DecodeShape {
  int ranks = 1;
  std::int64_t context = 1;  ///< tokens in the cache, of all ranks together
  int heads = 1, key_heads = 1, head_dim = 1;
};

/// Everything that cannot be, each with what would be legal.
std::vector<std::string> problems_of(const DecodeShape& shape);

/// Keys of a rank: one stretch each, as even as can be.
TokenRun decode_keys(const DecodeShape& shape, int rank);

/// Who sends what and computes what until all ranks have the output, as rounds of `forward`; there
/// is no backward. The shape must have no problems.
ContextPlan make_decode_plan(DecodeMethod method, const DecodeShape& shape);

}  // namespace heddle
