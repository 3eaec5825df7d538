#pragma once

#include "nn/attention.h"
#include "parallel/sequence/context_program.h"

namespace heddle {

/// CausalAttention where the ranks of axis cp have other tokens of the same micro-batch each
/// (MicroBatch::context). A micro-batch that is whole here is attended to here.
class ContextAttention final : public Layer {
 public:
  /// `ranks` outlives the layer. `index` names this layer's part of the KV cache.
  ContextAttention(const AttentionShape& shape, double scale, int index, Communicator& ranks);

  Tensor forward(const Tensor& qkv, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dout, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved&, Ctx&) override {}
  void visit(const ParamVisitor&) override {}
  Cost cost(const CostShape& shape) const override;

 private:
  /// Of the share, where it is not what the rank holds: kQueries, kKeys, kValues instead of kQkv.
  enum Slot { kQkv, kOut, kLse, kQueries, kKeys, kValues };

  AttentionShape shape_;
  double scale_;
  Communicator& ranks_;
  CausalAttention whole_;
};

}  // namespace heddle
