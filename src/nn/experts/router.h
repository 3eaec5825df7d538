#pragma once

#include <memory>
#include <vector>

#include "nn/layer.h"
#include "ops/experts.h"

namespace heddle {

/// What a router says of tokens: the experts of each, and what each of them counts for.
struct Routing {
  Tensor experts_TK, weights_TK;
};

/// Chooses experts for tokens by the products of a token with a row for every expert. Its choices
/// are dear: where forward runs a second time, it finds those of the first and never chooses again,
/// since rounding could make it choose otherwise.
class Router {
 public:
  struct Options {
    std::int64_t per_token = 1;  ///< experts of a token
    ops::RouterRule rule = {};
    /// Of every token, beside its cross-entropy.
    ops::RouterLoss loss = {};
    /// Groups of ranks that together have the tokens of a micro-batch, whose balance it is.
    std::vector<Communicator*> sharers = {};
  };

  /// weight [experts, width].
  Router(std::shared_ptr<Parameter> weight, const Options& options);

  Routing route(const Tensor& x_TD, Saved& saved, Ctx& ctx);
  /// What route() gave, in backward.
  Routing routing(const Saved& saved) const;
  /// The gradient of x, with the addend where there is one: from that of the weights, and of the
  /// router's losses.
  Tensor backward_input(const Tensor& dweights_TK, const Tensor& addend_TD, Saved& saved, Ctx& ctx);
  void backward_weight(const Tensor& x_TD, Saved& saved, Ctx& ctx);

  void visit(const ParamVisitor& visitor) { visitor(*weight_); }
  /// Of what it keeps all is dear.
  Cost cost(const CostShape& shape) const;

  std::int64_t experts() const { return weight_->shape[0]; }
  std::int64_t per_token() const { return options_.per_token; }

 private:
  std::int64_t width() const { return weight_->shape[1]; }
  bool balances() const { return options_.loss.balance != 0.0; }
  bool has_loss() const { return balances() || options_.loss.z != 0.0; }
  /// Choices by expert, of the whole micro-batch.
  Tensor count(const Tensor& experts_TK, DType dtype, Ctx& ctx) const;

  enum Slot { kLogits, kExperts, kWeights, kCounts, kLogitsGrad };
  std::shared_ptr<Parameter> weight_;
  const Options options_;
};

}  // namespace heddle
