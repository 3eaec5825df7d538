#pragma once

#include <vector>

#include "parallel/sequence/context_attention.h"

namespace heddle {

/// The attention of one rank of `ranks` by one method, with random q, k and v; of a shape with one
/// rank, that of the whole sequence.
class AttentionCase {
 public:
  AttentionCase(const ContextShape& shape, Communicator& ranks, Stream& stream, Memory& memory,
                DType dtype);

  void forward();
  void backward();
  const ContextPlan& plan() const { return context_->plan; }

  std::vector<double> forward_seconds, backward_seconds;

 private:
  Tensor random(const Shape& shape, DType dtype);

  const AttentionShape heads_;
  ContextAttention layer_;
  Stream& stream_;
  Memory& memory_;
  const std::shared_ptr<const RankContext> context_;  // none: the sequence is whole
  MicroBatch batch_;
  Tensor qkv_, dout_;
  Saved saved_;
};

}  // namespace heddle
