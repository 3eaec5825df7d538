#pragma once

namespace heddle {

/// What a schedule's computations act on: one rank's part of a model (or, in tests of the executor,
/// a timer).
class Stage {
 public:
  virtual ~Stage() = default;
  virtual void forward(int microbatch) = 0;
  virtual void backward_input(int microbatch) = 0;
  virtual void backward_weight(int microbatch) = 0;
  /// B and W at once.
  virtual void backward(int microbatch) = 0;
  /// All gradients of the step are in; makes them those of the whole mesh.
  virtual void reduce_grads() = 0;
  /// Updates the weights.
  virtual void step() = 0;
};

}  // namespace heddle
