#pragma once

namespace heddle {

/// What gradients of this norm are multiplied by so that it is at most `limit`; 0 means no limit.
/// The small addend follows PyTorch's clip_grad_norm_, so that runs can be compared.
double clip_scale(double norm, double limit);

}  // namespace heddle
