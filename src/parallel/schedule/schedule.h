#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle {

/// One thing a rank does in a step. f, b, w and bw are computation (bw is b and w at once); the
/// rest is inserted by `lower`.
enum class Act : std::uint8_t {
  f,
  b,
  w,
  bw,
  send_act,
  recv_act,
  send_grad,
  recv_grad,
  reduce_grads,
  step
};

struct Action {
  Act act = Act::f;
  int stage = 0;
  int microbatch = 0;
  int peer = -1;  ///< the other rank, for sends and receives
  /// Set by `lower` on the last w or bw of its stage: the stage's gradients are complete, and their
  /// reduction may start under what follows.
  bool completes_stage = false;

  friend bool operator==(const Action&, const Action&) = default;
};

/// What every rank does in one optimizer step, in order. The same data is validated, drawn,
/// simulated and executed.
struct Schedule {
  int microbatches = 1;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> by_rank;

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int ranks() const { return static_cast<int>(by_rank.size()); }
  int rank_of(int stage) const { return rank_of_stage[static_cast<std::size_t>(stage)]; }
};

/// The stages of one rank, ascending.
std::vector<int> stages_of(const Schedule& schedule, int rank);

/// Adds what lies between computations: sends and receives where neighbouring stages are on
/// different ranks, and the reduction of gradients and the optimizer step at the end. A receive
/// stands directly before the computation that needs it, a send directly behind the one that made
/// it; between stages of one rank the output is handed over in place.
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

/// "F3", "BW0", "step".
std::string to_text(const Action& action);
/// "F0 F1 BW0 ..." with a line per rank; stages are named where a rank has more than one.
std::string to_text(const Schedule& schedule);

}  // namespace heddle
