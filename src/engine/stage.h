#pragma once

#include <memory>
#include <string>

#include "base/check.h"
#include "parallel/exchange/coded_messages.h"
#include "parallel/step/tell_step.h"
#include "tensor/tensor.h"

namespace heddle {

/// What a step's ops act on: one rank's units of a model (or, in tests of the executor, timers).
class Stage {
 public:
  virtual ~Stage() = default;
  /// The action's pass over unit `op.what`. `given` is what the unit before it made, or what came
  /// from the stage before (in the backward: behind); absent in front of the first stage and behind
  /// the last, and for W and the passes of a divided vocabulary. Returns what goes on.
  virtual Tensor compute(const StepOp& op, const Tensor& given) = 0;
  /// A tensor for the boundary in front of or behind a stage, to receive into.
  virtual Tensor boundary(int microbatch) = 0;
  /// What a verdict calls the unit of a stage that takes what comes from outside: its first in the
  /// forward, its last in the backward. May be absent.
  virtual std::shared_ptr<const std::string> entry(const Action&) const { return nullptr; }
  /// How messages travel; null: as the tensors they are.
  virtual const CodedMessages* messages() const { return nullptr; }
  /// All other ops but messages and collectives of a vocabulary: values, gradients, the update.
  virtual void perform(const StepOp& op) = 0;

  // Only where the vocabulary is divided over the pipeline: the first stage's forward then takes
  // what all looked up, and the last one's returns what all need for the head.
  /// Gives this rank's part; `given` is what a stage that is here has for all others.
  virtual void begin_exchange(const Action&, const Tensor&) { has_no_vocabulary(); }
  /// Waits, and returns what a stage that is here takes from it.
  virtual Tensor end_exchange(const Action&) {
    has_no_vocabulary();
    return {};
  }

 private:
  static void has_no_vocabulary() {
    HEDDLE_CHECK(false, "a schedule with a divided vocabulary for stages that have none");
  }
};

}  // namespace heddle
