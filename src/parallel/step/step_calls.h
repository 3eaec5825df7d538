#pragma once

#include <functional>

#include "mesh/mesh.h"
#include "parallel/compression.h"
#include "parallel/step/tell_step.h"

namespace heddle {

/// A call of a communicator, as it counts it.
struct StepCall {
  enum class On : std::uint8_t { axes, ends, lanes };
  On on = On::axes;
  AxisSet axes = {};  ///< whose ranks make it
  CommOp op = CommOp::all_reduce;
  std::int64_t bytes = 0;  ///< of the whole tensor
  /// What a plain call would move, where these are a codec's bytes; 0: the same.
  std::int64_t stands_for = 0;

  std::int64_t payload() const { return stands_for > 0 ? stands_for : bytes; }
};

/// The sizes that calls have for one micro-batch.
struct CallSizes {
  std::int64_t element_bytes = 4, gradient_bytes = 4;
  std::int64_t message = 0;  ///< bytes between stages
  /// Of those, the payload, where they are a codec's bytes; 0: the same.
  std::int64_t message_stands_for = 0;
  bool agrees_on_messages = false;  ///< each comes behind one that says its size
  std::int64_t head_input = 0;      ///< bytes that a divided vocabulary gives and takes
  std::int64_t statistics = 0;      ///< bytes of the softmax, of all its ranks

  /// Those of a message of so many elements, as `compression` has it travel.
  void set_message(std::int64_t elements, const Compression& compression);
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
  void of_values(const RankUnits::Bucket& bucket, const Visit& visit) const;
  void of_gradients(const StepOp& op, const Visit& visit) const;
  void of_messages(StepOp::Kind kind, const Visit& visit) const;
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
