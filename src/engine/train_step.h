#pragma once

#include <span>
#include <vector>

#include "engine/executor.h"
#include "engine/model.h"
#include "engine/stage.h"
#include "optim/adamw.h"
#include "parallel/schedule/schedule.h"

namespace heddle {

struct StepResult {
  double loss = 0.0;       ///< mean over the targets that count
  double grad_norm = 0.0;  ///< before clipping
  std::int64_t targets = 0;
  bool is_finite = true;  ///< false: the weights were left as they were
};

/// Runs optimizer steps: executes the step's schedule over micro-batches, clips, updates.
class TrainStep : private Stage {
 public:
  TrainStep(Model& model, Optimizer& optimizer, Stream& stream, Memory& memory);

  /// `clip` limits the global gradient norm; 0 means no limit. A loss or a norm that is not finite
  /// leaves weights and moments untouched.
  StepResult run(std::span<const MicroBatch> microbatches, const StepArgs& args, double clip);
  /// Whoever wants to know when each action of a step began and ended.
  void observe(OnAction on_action) { on_action_ = std::move(on_action); }
  /// Gradients only, left in the parameters: for comparison with references.
  StepResult gradients(std::span<const MicroBatch> microbatches);

 private:
  void forward(int microbatch) override;
  void backward_input(int microbatch) override;
  void backward_weight(int microbatch) override;
  void backward(int microbatch) override;
  void reduce_grads() override;
  void step() override;

  void begin(std::span<const MicroBatch> microbatches);
  Ctx context(int microbatch);
  Saved& saved(int microbatch, std::size_t unit);

  Model& model_;
  Optimizer& optimizer_;
  Stream& stream_;
  Memory& memory_;

  OnAction on_action_;

  // The step under way.
  std::span<const MicroBatch> microbatches_;
  std::vector<Saved> saved_;  // by micro-batch; units are its children
  StepArgs args_;
  double clip_ = 0.0;
  double loss_sum_ = 0.0;
  StepResult result_;
};

}  // namespace heddle
