#pragma once

#include "nn/layer.h"

namespace heddle {

/// Whether the layer behind a norm keeps the norm's output, or it is made again in backward: the
/// second holds less, the first is faster.
enum class NormOutput { rebuilt, kept };

struct FuseOptions {
  NormOutput norm_output = NormOutput::rebuilt;
  std::int64_t mlp_tokens = 0;  ///< that an Mlp computes at once; 0: all
};

/// Rewrites a list of layers that will run one after the other: neighbours that do better together
/// become one layer that owns them (nn/fused_layers.h). What is computed stays the same, and so
/// does the order of parameters. In this order:
///
///   linear, activation, linear    -> Mlp, in a ChunkedProduct if it is to compute in chunks
///   PrepareQkv, CausalAttention   -> AttentionCore
///   norm, linear or Mlp           -> NormProduct, unless norms' outputs are kept
///
/// The last also across a Redistribute that does nothing in forward.
Layers fuse(Layers layers, const FuseOptions& options = {});

}  // namespace heddle
