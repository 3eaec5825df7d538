#pragma once

#include "base/check.h"
#include "parallel/schedule/schedule.h"
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

  // Only where the vocabulary is divided over the pipeline: the first stage's forward then takes
  // what all looked up, and the last one's returns what all need for the head.
  /// vocab_s, vocab_t, embed_f or embed_b.
  virtual void vocabulary_pass(Act, int) { has_no_vocabulary(); }
  /// Gives this rank's part; `given` is what a stage that is here has for all others.
  virtual void begin_exchange(Exchange, int, const Tensor&) { has_no_vocabulary(); }
  /// Waits, and returns what a stage that is here takes from it.
  virtual Tensor end_exchange(Exchange, int) {
    has_no_vocabulary();
    return {};
  }

 private:
  static void has_no_vocabulary() {
    HEDDLE_CHECK(false, "a schedule with a divided vocabulary for stages that have none");
  }
};

}  // namespace heddle
