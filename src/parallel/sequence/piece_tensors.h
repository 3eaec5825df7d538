#pragma once

#include <array>

#include "nn/context.h"
#include "parallel/sequence/piece_parts.h"

namespace heddle {

/// The tensors of a piece. Those by token are [1, tokens, heads, K], statistics [1, heads, tokens].
struct PieceTensors {
  std::array<Tensor, 2> rows = {};        ///< q and dO; k and v; out; dQ; dK and dV
  std::array<Tensor, 2> statistics = {};  ///< lse and delta, of queries; lse, of outputs
  /// What they lie in, where the piece is or may become a message: one buffer, or two where rows
  /// have the type of activations and statistics are wider.
  std::array<Tensor, 2> buffers = {};
  Tensor sums = {};      ///< of dQ that calls still add to, where there are such (ops/query_sums.h)
  bool has_rows = true;  ///< false while all that was added is in the sums, and rows are anything
};

/// Memory for a piece or a message, laid out as it travels: one buffer for all, or two where
/// statistics are of another type.
PieceTensors allocate_parts(PieceParts parts, std::int64_t tokens, std::int64_t heads,
                            std::int64_t head_dim, DType dtype, Ctx& ctx);

/// The tokens from `first` on, of some heads.
PieceTensors part_of(const PieceTensors& whole, std::int64_t first, std::int64_t count,
                     HeadRange heads);

}  // namespace heddle
