#pragma once

#include <vector>

#include "parallel/sequence/context_plan.h"

namespace heddle {

/// In any unit of time.
struct ContextTimes {
  double pair = 1.0;      ///< one query with one key in all heads, forward
  double byte = 0.0;      ///< on a rank's link, which sends and receives at the same time
  double backward = 2.5;  ///< of a pair, over forward: 10 FLOPs for 4
  ElementBytes sizes = {};
  double message = 0.0;  ///< of each, however short, beside its bytes
  /// So many neighbours are near each other (in a server): what messages between them take. 0:
  /// nobody is.
  int near_ranks = 0;
  double near_byte = 0.0, near_message = 0.0;
  /// Of a byte sent or received, what it takes of the rank that computes meanwhile: where the
  /// processor that computes also moves the bytes.
  double busy_byte = 0.0;
  double kernel = 0.0;  ///< of each tile and of each partial result that is added, however small

  double seconds(int from, int to, double bytes) const {
    const bool is_near = near_ranks > 0 && from / near_ranks == to / near_ranks;
    return is_near ? near_message + bytes * near_byte : message + bytes * byte;
  }
};

/// A message on its way; the sender has it in its list.
struct PlayedMessage {
  int peer = 0;
  double begin = 0.0, end = 0.0, bytes = 0.0;
};

struct PlayedRound {
  double begin = 0.0, computed = 0.0, end = 0.0;  ///< from `computed` to `end` it waits
  std::vector<PlayedMessage> sends = {};
};

/// What became of a pass, or of two in sequence.
struct PlayedContext {
  std::vector<std::vector<PlayedRound>> by_rank;
  double makespan = 0.0;
  double computing = 0.0;  ///< sum over ranks
  double exposed = 0.0;    ///< the same: waiting while a message of the rank is on its way

  /// Of the ranks' time until the makespan; 0 where there is none.
  double idle_fraction() const;     ///< what they do not compute
  double exposed_fraction() const;  ///< what of it is exposed
};

/// Plays a valid pass. A round begins when the one before has ended; its messages start when both
/// ranks have begun it, one after another on the link of each, and run beside its computation,
/// which takes longer by busy_byte for each of their bytes. Links are full-duplex: one message out
/// and one in at a time.
PlayedContext play_forward(const ContextPlan& plan, const ContextTimes& times);
PlayedContext play_backward(const ContextPlan& plan, const ContextTimes& times);

/// The second begins when all ranks have ended the first.
PlayedContext in_sequence(PlayedContext first, const PlayedContext& second);

}  // namespace heddle
