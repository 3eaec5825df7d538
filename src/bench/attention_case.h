#pragma once

#include <vector>

#include "parallel/sequence/context_attention.h"

namespace heddle {

/// The attention of one rank by one method; of a shape with one rank, that of the whole sequence.
class AttentionCase {
 public:
  AttentionCase(const ContextShape& shape, int rank)
      : context_(shape.ranks == 1 ? nullptr : make_rank_context(shape, rank)) {}
  virtual ~AttentionCase() = default;
  virtual void forward() = 0;
  virtual void backward() = 0;
  const ContextPlan& plan() const { return context_->plan; }  ///< of several ranks

  std::vector<double> forward_seconds, backward_seconds;

 protected:
  const std::shared_ptr<const RankContext> context_;  // none: the sequence is whole
};

/// The layer itself, with random q, k and v.
class ComputedCase final : public AttentionCase {
 public:
  ComputedCase(const ContextShape& shape, Communicator& ranks, Stream& stream, Memory& memory,
               DType dtype);

  void forward() override;
  void backward() override;

 private:
  Tensor random(const Shape& shape, DType dtype);

  const AttentionShape heads_;
  ContextAttention layer_;
  Stream& stream_;
  Memory& memory_;
  MicroBatch batch_;
  Tensor qkv_, dout_;
  Saved saved_;
};

}  // namespace heddle
