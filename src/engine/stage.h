#pragma once

#include "tensor/tensor.h"

namespace heddle {

/// What a schedule's computations act on: one rank's stages of a model (or, in tests of the
/// executor, timers). A boundary tensor is absent in front of the first stage and behind the last.
class Stage {
 public:
  virtual ~Stage() = default;
  virtual Tensor forward(int stage, int microbatch, const Tensor& x) = 0;
  virtual Tensor backward_input(int stage, int microbatch, const Tensor& dy) = 0;
  virtual void backward_weight(int stage, int microbatch) = 0;
  /// B and W at once.
  virtual Tensor backward(int stage, int microbatch, const Tensor& dy) = 0;
  /// A tensor for the boundary in front of or behind a stage, to receive into.
  virtual Tensor boundary(int microbatch) = 0;
  /// All gradients of the step are in; makes them those of the whole mesh.
  virtual void reduce_grads() = 0;
  /// Updates the weights.
  virtual void step() = 0;
};

}  // namespace heddle
