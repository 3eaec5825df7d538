#pragma once

#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "nn/experts/idle_network.h"

namespace heddle {

/// Sums of gradients that a step has offered to its next pass over a unit (StepOp). They begin in
/// the order of offers, when the pass says that the network is idle, or behind the pass.
class OfferedSums final : public IdleNetwork {
 public:
  struct Sum {
    Communicator* ranks = nullptr;
    std::function<Work(Stream&)> begin = {};  ///< makes its one call
  };

  void offer_beside_experts(Sum sum);
  void offer_beside_rest(Sum sum);
  /// The pass has ended: begins what it did not ask for.
  void end_pass(Stream& stream) { begin_behind_experts(stream); }

  bool has_for_experts() const override { return !beside_experts_.empty(); }
  std::vector<Work> begin_beside_experts(const Work& last_dispatch, Stream& stream) override;
  void begin_behind_experts(Stream& stream) override;

 private:
  std::vector<Sum> beside_experts_, beside_rest_;
};

}  // namespace heddle
