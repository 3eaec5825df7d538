#pragma once

#include <functional>

#include "mesh/mesh.h"
#include "parallel/step/tell_step.h"

namespace heddle {

/// A call of a communicator, as it counts it.
struct StepCall {
  enum class On : std::uint8_t { axes, ends, lanes };
  On on = On::axes;
  AxisSet axes = {};  ///< whose ranks make it
  CommOp op = CommOp::all_reduce;
  std::int64_t bytes = 0;  ///< of the whole tensor
};

/// The sizes that calls have for one micro-batch.
struct CallSizes {
  std::int64_t element_bytes = 4, gradient_bytes = 4;
  std::int64_t message = 0;     ///< bytes between stages
  std::int64_t head_input = 0;  ///< bytes that a divided vocabulary gives and takes
  std::int64_t statistics = 0;  ///< bytes of the softmax, of all its ranks
};

/// Calls `visit` with every call that an op of a step begins, on a rank of this mesh.
class StepCalls {
 public:
  StepCalls(const RankUnits& units, const StepPolicy& policy, const MeshShape& mesh,
            const CallSizes& sizes, int vocabulary)
      : units_(units), policy_(policy), mesh_(mesh), sizes_(sizes), vocabulary_(vocabulary) {}

  using Visit = std::function<void(const StepCall&)>;
  void of(const StepOp& op, const Visit& visit) const;

 private:
  void of_layers(const StepOp& op, const Visit& visit) const;
  void of_outer(int fragment, const Visit& visit) const;
  void of_vocabulary(Exchange exchange, const Visit& visit) const;
  /// One axis after the other.
  void sum(AxisSet over, std::int64_t bytes, const Visit& visit) const;

  const RankUnits& units_;
  const StepPolicy& policy_;
  const MeshShape& mesh_;
  const CallSizes sizes_;
  const int vocabulary_;  // as Schedule::vocabulary
};

/// What a rank sends in a step, as its communicators will count it.
MeshTraffic step_traffic(const Schedule& lowered, int pp_rank, const RankUnits& units,
                         const StepPolicy& policy, const MeshShape& mesh, const CallSizes& sizes);

}  // namespace heddle
