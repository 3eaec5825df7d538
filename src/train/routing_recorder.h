#pragma once

#include "engine/model.h"
#include "parallel/experts/expert_placement.h"

namespace heddle {

/// Makes a routing trace from micro-batches that the replicas of a mesh go through side by side.
/// All ranks have the whole trace, in the order of the text, and the same one on every mesh.
class RoutingRecorder {
 public:
  /// A round is a micro-batch of at most `tokens` on each replica. Adds to `trace`, which outlives
  /// the recorder.
  RoutingRecorder(const Model& model, std::int64_t tokens, Memory& host, RoutingTrace& trace);

  /// For Model::losses, on this replica's micro-batch of the round.
  OnChoices begin_round();
  /// All ranks. `targets` are the micro-batch's: tokens without one, which are padding or the last
  /// of a text, are left out; absent: the micro-batch does not count.
  void end_round(const Tensor& targets, Stream& stream);

 private:
  const Mesh& mesh_;
  RoutingTrace& trace_;
  const std::int64_t tokens_;
  /// Of all replicas: 1 + the expert, 0 where there is none. Each rank writes what its routers
  /// choose and leaves the rest, so that the sum over ranks is all of it.
  const Tensor taken_TLK_;
};

}  // namespace heddle
