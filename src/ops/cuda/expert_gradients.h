#pragma once

// Device code: backward of weight * down(silu(gate) * up) behind the product with down, element by
// element.

#include "ops/cuda/vectors.h"

namespace heddle::ops::cuda {

struct ExpertGradients {
  float gate, up, y;  ///< y is weight * silu(gate) * up
};

/// dy is the gradient without the weight; dot += dy * silu(gate) * up. In few instructions: beside
/// products (grouped_gradients.h) a warp has some thirty for an element.
__device__ __forceinline__ ExpertGradients expert_gradients(float dy, float gate, float up,
                                                            float weight, float& dot) {
  float s;  // the sigmoid of gate
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0F + exp2_fast(-kLog2E * gate)));
  const float silu = gate * s, made = silu * up, out = weight * dy;
  dot = fmaf(made, dy, dot);
  return {out * up * fmaf(silu, 1.0F - s, s), out * silu, weight * made};
}

}  // namespace heddle::ops::cuda
