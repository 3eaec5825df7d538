#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "parallel/schedule/schedule.h"
#include "parallel/step/outer_policy.h"
#include "parallel/step/rank_units.h"
#include "parallel/step/sum_windows.h"

namespace heddle {

/// One thing that a rank does in an optimizer step.
struct StepOp {
  enum class Kind : std::uint8_t {
    action,   ///< the next action of the schedule begins; all up to the next one belong to it
    compute,  ///< the action's pass over unit `what`
    // Whole values of bucket `what`, which ranks have parts of (ZeRO-3):
    fetch,   ///< begins to gather them
    values,  ///< waits for them; from here on layers may use them
    drop,    ///< forgets them
    // Gradients of bucket `what`:
    open,    ///< gives whole gradients a place (from ZeRO-2 on they have none between passes)
    reduce,  ///< begins their sum over the ranks that see other tokens
    // The same of a `slice`, in the pass over a unit that follows:
    beside_experts,  ///< behind the last dispatch of its experts
    beside_rest,     ///< behind its experts
    reduced,         ///< waits for the oldest sum that is under way, which is this one
    rest,  ///< sums what other ranks have a part of for another reason (RankUnits::Bucket::sums)
    tie,   ///< sums those of a tied table's two ends
    // Gradients that are not summed over the ranks that see other tokens (StepPolicy::reduces):
    local,        ///< of bucket `what`: as rest, of all its elements
    local_tie,    ///< as tie, of all elements
    vectors,      ///< sums what is no matrix over those ranks all the same, of all buckets at once
    norm,         ///< adds the squares of all gradients
    sum,          ///< sums number `what` of StepPolicy::sums
    update,       ///< the optimizer's step
    outer_begin,  ///< begins the exchange of fragment `what` between sites
    outer_end,    ///< waits for it, and changes outer and own weights
    gather,       ///< begins to make values of bucket `what` whole that were updated in parts
    gathered,     ///< waits for it
    // Messages between stages; `action` is the send or the receive.
    post,     ///< gives a message that will come a place
    receive,  ///< waits for it
    send,     ///< does not wait
    sent,     ///< waits for the oldest with this peer, kind and stage
    // Collectives of a vocabulary that is divided over the pipeline; `action` says which.
    begin,
    end
  };
  /// Elements [begin, end) of what the sum leaves with a rank: of the whole bucket, or with ZeRO of
  /// every rank's part of it.
  struct Slice {
    std::int64_t begin = 0, end = 0;
    bool is_all() const { return end == 0; }
    std::int64_t count() const { return end - begin; }
  };
  Kind kind = Kind::action;
  int what = -1;
  const Action* action = nullptr;  ///< of the schedule; absent before the first
  Slice slice = {};                ///< of gradients whose sum begins
};

/// A few numbers that ranks add up once in a step.
struct StepSum {
  enum class When : std::uint8_t { first, with_gradients };
  const char* name = "";     ///< a literal
  AxisSet over = {};         ///< one after the other, as Mesh::sum does
  std::int64_t numbers = 1;  ///< f64
  When when = When::with_gradients;
};

/// How a step makes its exchanges. A new one is a line here and in tell_step; who performs, plans,
/// times and counts steps then has it too.
struct StepPolicy {
  /// The number of targets, by which losses are divided, and of models with experts that of tokens,
  /// by which their routers' are; squares of gradients, and losses.
  static constexpr int kTargets = 0, kTotals = 1;
  /// Of models with experts: how often each was chosen (ops::add_load), by layer.
  static constexpr int kExpertLoad = 2;
  /// Of the totals: squares of gradients, losses, how many ranks ask for something; an optimizer's
  /// own are behind them.
  static constexpr int kSquares = 0, kLosses = 1, kAsking = 2, kFirstOwn = 3;
  std::vector<StepSum> sums = usual_sums();
  /// Squares of gradients by rank of the pipeline, the last of the totals; 0: none.
  int stage_squares = 0;
  /// Gradients that are kept whole are summed behind the last micro-batch, as Megatron-LM does, and
  /// not when a unit has all of them.
  bool reduces_at_end = false;
  bool updates = true;  ///< otherwise gradients are all that is wanted
  /// Otherwise matrices' gradients stay with the ranks that made them, and the update has an
  /// exchange of its own (RankUnits::Joint): 1-bit Adam behind its warm-up, with ZeRO 0 or 1.
  bool reduces = true;
  /// Sums of plain gradients that are kept whole (ZeRO 0 and 1) then wait for these windows, cut in
  /// slices; what is left behind the last window of a rank begins there.
  SumWindows windows = {};
  OuterPolicy outer = {};
  std::int64_t step = 0;  ///< of the run, from 1 on, for outer steps; 0: one without them
  /// Of messages with the same peer, kind and stage; 0: no limit. What a rank sends and computes
  /// does not depend on it, only what it keeps meanwhile.
  int sends_under_way = 0;

  static std::vector<StepSum> usual_sums();
  void count_stage_squares(int stages) {
    stage_squares = stages;
    sums[kTotals].numbers += stages;
  }
};

/// Stages of one unit each that have no parameters: for schedules without a model.
RankUnits plain_units(const Schedule& schedule);

using StepVisitor = std::function<void(const StepOp&)>;

/// Tells `visit` in order what pipeline rank `rank` does in a step of the lowered schedule. The
/// runtime performs it, memory plans are made by performing it dry, simulations time it, and
/// traffic is counted from it: nobody else knows how a step goes.
void tell_step(const Schedule& lowered, int rank, const RankUnits& units, const StepPolicy& policy,
               const StepVisitor& visit);

/// A forward pass over these units and nothing else: each has its values while it computes, and
/// those of the next are on their way.
void tell_forward(const RankUnits& units, std::span<const int> order, const StepVisitor& visit);

}  // namespace heddle
