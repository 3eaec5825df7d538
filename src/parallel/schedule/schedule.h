#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle {

/// One thing a rank does in a step. All up to embed_b are computation; the rest is inserted by
/// `lower`.
enum class Act : std::uint8_t {
  f,
  b,
  w,
  bw,  ///< b and w at once
  // A vocabulary that is split over all ranks (Yeung et al. 2025): every rank does its part of the
  // output layer of every micro-batch, behind f and before b of the last stage, and of the input
  // layer, before f and behind b of the first.
  vocab_s,  ///< logits of this rank's rows, their maximum and sum
  vocab_t,  ///< gradients of this rank's rows; with algorithm 1 also their part of dX
  embed_f,  ///< looks up what lies in this rank's rows
  embed_b,  ///< adds to the gradients of this rank's rows
  // Between two ranks: a send does not wait, a receive does.
  send_act,
  recv_act,
  send_grad,
  recv_grad,
  // Among all ranks: `begin` gives what this rank has to give and does not wait, `end` waits.
  begin,
  end,
  reduce_grads,
  step
};

/// What all ranks of the pipeline do together. Each kind needs a communicator of its own: ranks
/// agree on the order of micro-batches within a kind, not on the order of kinds.
enum class Exchange : std::uint8_t {
  none,
  output,         ///< C0: the output of the last stage to all
  softmax,        ///< C1: maximum, sum and label logit over all rows; algorithm 2: dX too
  output_grad,    ///< C2, algorithm 1: the sum of the parts of dX, for the last stage
  embedding,      ///< the sum of what was looked up, for the first stage
  embedding_grad  ///< the gradient of the first stage's input to all
};

inline constexpr int kExchanges = 5;

/// Whether one rank gives and all others take; otherwise all give.
constexpr bool has_one_source(Exchange collective) {
  return collective == Exchange::output || collective == Exchange::embedding_grad;
}

struct Action {
  Act act = Act::f;
  /// Of vocabulary passes and collectives: the first or the last stage, which they serve.
  int stage = 0;
  int microbatch = 0;
  /// The other rank, for sends and receives; of a collective the one rank that gives or needs the
  /// tensor, -1 where all do.
  int peer = -1;
  Exchange collective = Exchange::none;  ///< of begin and end

  friend bool operator==(const Action&, const Action&) = default;
};

/// What every rank does in one optimizer step, in order. The same data is validated, drawn,
/// simulated and executed.
struct Schedule {
  int microbatches = 1;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> by_rank;
  /// 1 or 2: by which algorithm the output layer is split over the ranks; 0: it is not, nor is the
  /// input layer.
  int vocabulary = 0;
  /// By micro-batch: the stages it goes through, in the order of its forward, from the first stage
  /// to the last and none twice; empty: all in order.
  std::vector<std::vector<int>> routes = {};

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int ranks() const { return static_cast<int>(by_rank.size()); }
  int rank_of(int stage) const { return rank_of_stage[static_cast<std::size_t>(stage)]; }
  /// The stage that a micro-batch visits next, or did before; -1: none. `stage` is on its way.
  int behind(int stage, int microbatch) const;
  int before(int stage, int microbatch) const;
  bool is_visited(int stage, int microbatch) const;
  /// By how many micro-batches.
  int visits_of(int stage) const;
};

/// The stages of one rank, ascending.
std::vector<int> stages_of(const Schedule& schedule, int rank);

/// f, b, w, bw and the passes of a split vocabulary.
constexpr bool is_computation(Act act) { return act <= Act::embed_b; }
constexpr bool is_vocabulary(Act act) { return act >= Act::vocab_s && act <= Act::embed_b; }

/// Adds what lies between computations: sends and receives where a micro-batch goes on to a stage
/// on another rank, and the reduction of gradients and the optimizer step at the end. A receive
/// stands directly before the computation that needs it, a send directly behind the one that made
/// it; between stages of one rank the output is handed over in place. The collectives of a split
/// vocabulary begin directly behind what they need and end before the first that needs them.
Schedule lower(const Schedule& compute_only);

/// One thing that is wrong with a schedule.
struct Diagnostic {
  int rank = -1;
  std::string message;
};

/// Everything that is wrong: an action out of order, missing, repeated or on the wrong rank,
/// micro-batches that do not ascend, messages that are not received in the order they are sent, a
/// deadlock (sends never wait, receives do). Empty for a schedule that will run.
std::vector<Diagnostic> validate(const Schedule& lowered);

/// The largest number of micro-batches between their forward and the end of their weight gradients,
/// by rank, in units of the rank's whole part of the model: one of V stages counts 1/V.
std::vector<double> peak_in_flight(const Schedule& schedule);

/// The most messages from one rank to another that are sent and not yet received, when f, b and w
/// take the same time. With room for as many between each two ranks, senders that wait for room
/// neither stop the pipeline nor slow it down; with less they may. The schedule must be valid.
int messages_under_way(const Schedule& lowered);

/// "F", "BW", "step".
const char* symbol(Act act);
/// "F3", "BW0", "step"; "c1>2" and "c1<2" begin and end a collective.
std::string to_text(const Action& action);
/// The same with the stage, "F3s1", where ranks of the schedule have more than one.
std::string to_text(const Action& action, const Schedule& schedule);
/// "F0 F1 BW0 ..." with a line per rank; stages are named where a rank has more than one.
std::string to_text(const Schedule& schedule);

}  // namespace heddle
