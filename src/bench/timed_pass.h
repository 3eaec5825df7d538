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

/// What a pass over experts waits for in place of products.
struct ExpertWaits {
  double expert = 0;   ///< of a piece
  double weights = 0;  ///< of the gradients of weights, behind all pieces; 0: none are made
};

/// A pass over a layer of experts, one on each node, without the products: the expert of a piece is
/// a wait, and everything else is what a step does. So a rank has an accelerator that it does not
/// have, and what is above the recurrence's time is the walk's, the communicators' and the links'.
class TimedExpertsPass {
 public:
  /// Every rank sends as many of its `rows` rows of `width` f32 to each expert, as the plan says;
  /// forward if `loads` is 1. A second load is a number for each row, as backward has it. Every
  /// rank makes one: they exchange counts.
  TimedExpertsPass(const ExpertNodes& nodes, std::int64_t rows, std::int64_t width,
                   const ExchangePlan& plan, int loads);

  /// Every rank calls it. `idle`: what waits for the network meanwhile.
  void walk(const ExpertWaits& waits, IdleNetwork* idle = nullptr) const;
  /// The same from a common beginning; this rank's seconds.
  double run(const ExpertWaits& waits, IdleNetwork* idle = nullptr) const;

 private:
  const ExpertNodes& nodes_;
  const std::int64_t rows_, width_;
  const int loads_;
  mutable Memory memory_;
  mutable Stream stream_{1};
  const MicroBatch none_;
  mutable Ctx ctx_{.stream = stream_, .memory = memory_, .batch = none_};
  const ExpertExchange exchange_;
  ExpertExchange::Ways ways_;
};

/// Lets every all-to-all of a communicator, or every `op`, take so long before it is made, by how
/// many it has made.
std::unique_ptr<Communicator> with_timed_exchanges(const Communicator& ranks,
                                                   std::function<double(int)> seconds,
                                                   CommOp op = CommOp::all_to_all);

}  // namespace heddle
