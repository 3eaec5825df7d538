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

  friend bool operator==(const Action&, const Action&) = default;
};

/// What every rank does in one optimizer step, in order. The same data is validated, drawn,
/// simulated and executed. Stage s runs on rank s % ranks.
struct Schedule {
  int stages = 1;
  int microbatches = 1;
  std::vector<std::vector<Action>> by_rank;

  int ranks() const { return static_cast<int>(by_rank.size()); }
  int rank_of(int stage) const { return stage % ranks(); }
};

/// Sizes a generator needs: pipeline ranks and micro-batches per step.
struct PipeShape {
  int ranks = 1;
  int microbatches = 1;
};

/// One forward, one backward: at most ranks - rank micro-batches in flight (Narayanan et al. 2021).
/// Emits f and bw only.
Schedule one_f_one_b(const PipeShape& shape);

/// Adds what lies between computations: sends and receives at stage boundaries, and the reduction
/// of gradients and the optimizer step at the end.
Schedule lower(const Schedule& compute_only);

/// One thing that is wrong with a schedule.
struct Diagnostic {
  int rank = -1;
  std::string message;
};

/// Everything that is wrong: an action out of order or missing, a send without its receive, a
/// deadlock. Empty for a schedule that will run.
std::vector<Diagnostic> validate(const Schedule& lowered);

/// The largest number of micro-batches between their forward and the end of their backward, by
/// rank.
std::vector<int> peak_in_flight(const Schedule& schedule);

/// "F3", "BW0", "step".
std::string to_text(const Action& action);
/// "F0 F1 BW0 ..." with a line per rank; stages are named where a rank has more than one.
std::string to_text(const Schedule& schedule);

}  // namespace heddle
