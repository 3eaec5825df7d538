#pragma once

#include <functional>
#include <memory>

#include "comm/world.h"
#include "nn/experts/pass_walk.h"

namespace heddle {

/// Ranks that divide experts as FSMoE assumes: `per_node` neighbours are a node and share the width
/// of its experts (etp), ranks of one place in different nodes have other experts (ep).
struct ExpertNodes {
  std::unique_ptr<Communicator> ep, etp;

  ExpertNodes(World& world, int per_node);
  /// Both in the background: as lanes.
  void run_in_background() const;
};

/// A layer of experts, one on each node, without the products: the expert of a piece is a wait, and
/// everything else is what a step does. So a rank has an accelerator that it does not have, and
/// what is above the recurrence's time is the walk's, the communicators' and the links'.
class TimedExperts {
 public:
  /// Every rank sends as many of its `rows` rows of `width` f32 to each expert.
  TimedExperts(const ExpertNodes& nodes, std::int64_t rows, std::int64_t width)
      : nodes_(nodes), rows_(rows), width_(width) {}

  struct Waits {
    double expert = 0;   ///< of a piece
    double weights = 0;  ///< of the gradients of weights, behind all pieces; 0: none are made
  };
  /// One pass as the plan says, forward if `loads` is 1; every rank calls it. A second load is a
  /// number for each row, as backward has it. Returns this rank's seconds, without the exchange of
  /// counts.
  double run(const ExchangePlan& plan, const Waits& waits, int loads = 1) const;

 private:
  const ExpertNodes& nodes_;
  const std::int64_t rows_, width_;
};

/// Lets every all-to-all of a communicator take so long before it is made, by how many it has made.
std::unique_ptr<Communicator> with_timed_exchanges(const Communicator& ranks,
                                                   std::function<double(int)> seconds);

}  // namespace heddle
