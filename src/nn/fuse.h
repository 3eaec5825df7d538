#pragma once

#include "nn/layer.h"

namespace heddle {

/// Whether the layer behind a norm keeps the norm's output, or it is made again in backward: the
/// second holds less, the first is faster.
enum class NormOutput { rebuilt, kept };

/// Rewrites a list of layers that will run one after the other: neighbours that do better together
/// become one layer that owns them (nn/fused_layers.h). What is computed stays the same, and so
/// does the order of parameters. In this order:
///
///   linear, activation, linear    -> Mlp
///   PrepareQkv, CausalAttention   -> AttentionCore
///   norm, linear or Mlp           -> NormProduct, unless norms' outputs are kept
///
/// The last also across a Redistribute that does nothing in forward.
Layers fuse(Layers layers, NormOutput norm_output);

}  // namespace heddle
