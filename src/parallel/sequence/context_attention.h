#pragma once

#include "nn/attention.h"
#include "parallel/sequence/context_walk.h"

namespace heddle {

/// CausalAttention where the ranks of axis cp have other tokens of the same micro-batch each
/// (MicroBatch::context). A micro-batch that is whole here is attended to here. A new token behind
/// a KV cache that the ranks divide is attended to by each with the keys that it has; one exchange
/// brings the parts together (tree attention), the same on every rank.
class ContextAttention final : public Layer {
 public:
  /// `ranks` outlives the layer. `index` names this layer's part of the KV cache. `window`: see
  /// CausalAttention; micro-batches have rounds for it.
  ContextAttention(const AttentionShape& shape, const ops::ScoreRule& rule, int index,
                   Communicator& ranks, std::optional<std::int64_t> window = {});

  Tensor forward(const Tensor& qkv, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dout, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved&, Ctx&) override {}
  void visit(const ParamVisitor&) override {}
  Cost cost(const CostShape& shape) const override;

 private:
  Tensor whole_sequence(const Tensor& qkv, Saved& saved, Ctx& ctx);
  Tensor decode(const Tensor& qkv, Ctx& ctx) const;
  /// The rounds of this layer.
  const RankContext& context_of(const MicroBatch& batch) const {
    return batch.context->of(window_);
  }
  ContextWalk::Setting setting(ContextPassKind pass, DType dtype, const Ctx& ctx) const;
  /// Of tensors by token.
  Shape rows_shape(const ContextProgram& program, int piece) const;
  /// q, k and v for forward, kept for backward where all is.
  std::vector<PieceTensors> given(const Tensor& qkv, Saved& saved, Ctx& ctx) const;

  /// Where the share is not what the rank holds, q, k, v and out are those of the share.
  enum Slot { kQkv, kOut, kLse, kQueries, kKeys, kValues, kHeldOut };

  AttentionShape shape_;
  ops::ScoreRule rule_;
  int index_;
  Communicator& ranks_;
  std::optional<std::int64_t> window_;
  CausalAttention whole_;
};

}  // namespace heddle
