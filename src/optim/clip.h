#pragma once

#include <span>

#include "parallel/param_store.h"

namespace heddle {

/// The norm of all gradients together.
double global_grad_norm(std::span<const OptShard> shards, Stream& stream);

/// What gradients of this norm are multiplied by so that it is at most `limit`; 0 means no limit.
/// The small addend follows PyTorch's clip_grad_norm_, so that runs can be compared.
double clip_scale(double norm, double limit);

}  // namespace heddle
