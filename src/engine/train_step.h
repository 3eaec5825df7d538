#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/block_meter.h"
#include "engine/executor.h"
#include "engine/model.h"
#include "engine/peer_copy.h"
#include "engine/stage.h"
#include "engine/vocabulary_passes.h"
#include "optim/optimizer.h"
#include "parallel/exchange/outer_steps.h"
#include "parallel/schedule/schedule.h"

namespace heddle {

/// Of the step over all ranks of a site; the same on all of them.
struct StepResult {
  double loss = 0.0;  ///< mean over the targets that count
  /// Before clipping. Where gradients are not averaged over ranks (StepPolicy::reduces), the root
  /// of the mean square of their norms.
  double grad_norm = 0.0;
  std::int64_t targets = 0;
  bool is_asked = false;  ///< some rank asked for something (TrainStep::ask)
  bool is_finite = true;  ///< false: the weights were left as they were
  /// Of models with experts (ops::add_load): of every layer that has them, one after the other.
  std::vector<double> expert_load = {};
  /// Among those layers the first one whose router had logits that are not finite; -1: none.
  std::int64_t bad_router = -1;
  bool is_warming_up = true;  ///< of an optimizer's phases (StepPlan::later), the first
  /// What a pass of a micro-batch over one block took on each rank of the site, forward and
  /// backward together, by rank in the mesh; 0: it has no block, or does not time them. Empty of
  /// one rank. Of ranks on GPUs: in the step before, 0 in the first.
  std::vector<double> block_seconds = {};
};

/// Runs optimizer steps: executes the step's schedule over this rank's micro-batches, clips,
/// updates. All ranks of the mesh run it at the same time, each with the same number of
/// micro-batches of the same size; ranks that differ only on cp, tp and pp with the same ones, of
/// which a cp rank takes its share of the tokens.
class TrainStep : private Stage {
 public:
  /// `outer` is there where the plan's policy has outer steps; it counts the steps. A copy that is
  /// kept follows the rank whose copy it is.
  TrainStep(Model& model, Optimizer& optimizer, Stream& stream, Memory& memory,
            OuterSteps* outer = nullptr, const CopyExchange& copies = {});

  /// The micro-batches lie in host memory. `clip` limits the global gradient norm; 0 means no
  /// limit. A loss or a norm that is not finite leaves weights and moments untouched. On a GPU
  /// nothing is read back before the end of the step.
  StepResult run(std::span<const MicroBatch> microbatches, const StepArgs& args, double clip);
  /// Whoever wants to know when each action of a step began and ended.
  void observe(OnAction on_action) { on_action_ = std::move(on_action); }
  /// Is called before weights and states change, while nothing of the step changes them; where
  /// residuals of gradients are kept, several times.
  void before_update(std::function<void()> wait) { before_update_ = std::move(wait); }
  /// Where a step may outlive ranks that take part in it
  /// (docs/design/050-runs-that-outlive-ranks.md): `decide` is called when the totals of the step
  /// have come; on a GPU they are waited for. What it throws leaves weights and states as they
  /// were: what a step changes before this is kept twice (ParamStore::Options::retakes_steps), all
  /// else it changes behind this, on this rank alone. `must_meet`: ranks have exchanged something
  /// behind the totals, so to have these does not say that all are as far.
  using Decide = std::function<void(bool must_meet)>;
  void before_deciding(Decide decide);
  /// Whether the last step that was begun has been decided here: its update is done, also where the
  /// step itself was interrupted.
  bool is_decided() const { return is_decided_; }
  /// What a rank that knows the totals of a decided step gives to those that do not: these, and of
  /// models with experts their load. They are there as soon as this rank has them.
  std::vector<double> decided_totals() const { return decided_totals_; }
  /// Does the update of the step that was interrupted before it was decided here, by the totals of
  /// a rank that has decided it: for them all ranks had summed their gradients.
  void decide_by(std::span<const double> totals);
  /// Of a step that was decided but interrupted.
  StepResult decided_result();
  /// The number of this rank's first micro-batch among those of all replicas, where shares differ.
  void set_first_microbatch(std::int64_t number) { first_microbatch_ = number; }
  /// Times the rank's blocks for StepResult::block_seconds, by a clock of its stream.
  void time_blocks(std::unique_ptr<StreamClock> clock);
  /// What `asks` says in the middle of a step goes with it to all ranks (StepResult::is_asked):
  /// that one of them was sent a signal, which they need not agree on between steps then.
  void ask(std::function<bool()> asks) { asks_ = std::move(asks); }
  /// Whoever wants to see what every unit makes: its output, and in the backward the gradient of
  /// its input.
  enum class Pass { forward, backward };
  using OnUnit =
      std::function<void(const std::string& label, int microbatch, Pass pass, const Tensor& made)>;
  void watch(OnUnit on_unit) { on_unit_ = std::move(on_unit); }
  /// Whoever wants to see which experts tokens take; once for each layer and token, also where
  /// blocks are computed again.
  void watch_choices(OnChoices on_choices) { on_choices_ = std::move(on_choices); }
  /// What the step before was, of a run that goes on (StepResult::expert_load); may be empty.
  void set_last_load(std::span<const double> load);
  /// Gradients only, left in the parameters: for comparison with references.
  StepResult gradients(std::span<const MicroBatch> microbatches);

 private:
  Tensor compute(const StepOp& op, const Tensor& given) override;
  Tensor pass(const StepOp& op, const Tensor& given, Saved& saved, Ctx& ctx);
  static Tensor pass(Layer& layer, Act act, const Tensor& given, Saved& saved, Ctx& ctx);
  Tensor boundary(int microbatch) override;
  std::shared_ptr<const std::string> entry(const Action& action) const override;
  const CodedMessages* messages() const override { return model_.messages(); }
  void perform(const StepOp& op) override;
  void begin_exchange(const Action& action, const Tensor& given) override;
  Tensor end_exchange(const Action& action) override;

  StepResult run(std::span<const MicroBatch> microbatches, bool updates);
  /// Of numbers that came in host memory.
  void set_numbers(int which, std::span<const double> values);
  void begin(std::span<const MicroBatch> microbatches);
  /// Waits for the device and reads what the step amounted to.
  void end();
  void read_totals(std::span<const double> totals);
  const Schedule& schedule(int microbatches);
  Ctx context(int microbatch);
  const Tensor& totals() const { return numbers_[StepPolicy::kTotals]; }
  Tensor total(int which) const { return totals().slice(0, which, which + 1); }
  /// Says what calls of communicators are for until the next op: "F of block 7, micro-batch 3".
  void tag(const char* what, int unit, const Action* action);
  void add_squares();
  void sum(int which);
  void add_totals();
  void tell_block_seconds();
  /// What sums of squares are multiplied by for the norm.
  double squares_factor() const;
  void update();
  /// Of the totals.
  void make_clip_factor();
  void change_weights();
  // Copies follow by the gradients of those whose copies they are.
  /// Whether gradients travel while others are computed. Between GPUs messages of two ranks go one
  /// after the other, and none may stand in front of the next stage's.
  bool exchanges_copies_early() const;
  /// Once in a step. Not before its first backward: none comes earlier, and the copy may still be
  /// at the update of the last step, for which it reads the gradients of that one.
  void expect_copies();
  /// As soon as nothing changes the gradients of the bucket any more.
  void give_to_keeper(int bucket);
  bool is_final(const StepOp& op) const;
  /// Before the totals: who has these knows that all copies can follow.
  void end_copies();
  /// How often experts were chosen so far in this step: [layers, experts + 2]; absent without any.
  Tensor expert_load() const;
  void find_bad_router();
  void read_load(std::span<const double> load);
  /// Biases of routers move against the load.
  bool balances_routers() const;
  void balance_routers(ParamStore& store);

  Model& model_;
  Optimizer& optimizer_;
  OuterSteps* const outer_;
  const CopyExchange copies_;
  Stream& stream_;
  Memory& memory_;
  OnAction on_action_;
  std::function<void()> before_update_;
  Decide decide_;
  std::function<bool()> asks_;
  std::shared_ptr<BlockMeter> blocks_;  // where blocks are timed
  double last_block_seconds_ = 0.0;     // of a step that has ended
  OnUnit on_unit_;
  OnChoices on_choices_;
  Schedule schedule_;
  std::unique_ptr<VocabularyPasses> vocabulary_;  // where it is divided over the pipeline

  // The step under way.
  std::vector<MicroBatch> microbatches_;  // on the device
  std::vector<Saved> saved_;              // by micro-batch; units are its children
  StepPolicy policy_;
  StepArgs args_;
  std::int64_t step_ = 1;  // StepArgs::step
  double clip_ = 0.0;
  bool is_decided_ = false;
  bool is_read_ = false;  // result_ says what the step amounted to
  std::vector<double> decided_totals_;
  std::vector<Work> given_;     // gradients that are on their way to who keeps a copy
  std::vector<Work> taken_;     // and those of the one whose copy is kept here
  std::vector<bool> is_given_;  // by bucket; frozen ones never are, and count as given
  bool expects_copies_ = false;
  std::optional<std::int64_t> first_microbatch_;
  std::int64_t tokens_ = 1;  // of all ranks, where routers have losses of them
  /// Of StepPolicy::sums, f64. Those that come first are in host memory, the others on the device
  /// until the step has ended.
  std::vector<Tensor> numbers_;
  Tensor last_load_;  // of all ranks in the step before, zeros at first; absent without experts
  StepResult result_;
};

}  // namespace heddle
