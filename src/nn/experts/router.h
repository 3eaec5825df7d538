#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nn/embedding.h"
#include "nn/experts/gate.h"
#include "nn/experts/router_logits.h"
#include "nn/layer.h"

namespace heddle {

/// What a router says of tokens: the experts of each, and what each of them counts for.
struct Routing {
  Tensor experts_TK, weights_TK;
};

/// Chooses experts for tokens by a logit for each of them. Its choices are dear: where forward runs
/// a second time, it finds those of the first and never chooses, draws or counts again, since
/// rounding could make it choose otherwise.
class Router {
 public:
  struct Options {
    std::int64_t per_token = 1;  ///< experts of a token
    ops::RouterRule rule = {};
    /// Of every token, a target or not.
    ops::RouterLoss loss = {};
    /// Groups of ranks that together have the tokens of a micro-batch, whose balance it is.
    std::vector<Communicator*> sharers = {};
    GateRule gate = {};
    TokenShare tokens = {};  ///< of the micro-batch, or of a rank's share of it, that x has
    std::int64_t layer = 0;  ///< its row of Ctx::expert_load
    /// Otherwise others count the same choices.
    bool counts = true;
    /// [experts]: added to scores for choosing; nobody trains it (Parameter::balances).
    std::shared_ptr<Parameter> bias = nullptr;
  };

  Router(std::unique_ptr<RouterLogits> logits, const Options& options);
  /// weight [experts, width], of LinearLogits.
  Router(std::shared_ptr<Parameter> weight, const Options& options);

  Routing route(const Tensor& x_TD, Saved& saved, Ctx& ctx);
  /// What route() gave, in backward.
  Routing routing(const Saved& saved) const;
  /// The gradient of x, with the addend where there is one: from that of the weights, and of the
  /// router's losses.
  Tensor backward_input(const Tensor& dweights_TK, const Tensor& addend_TD, Saved& saved, Ctx& ctx);
  void backward_weight(const Tensor& x_TD, Saved& saved, Ctx& ctx);

  void visit(const ParamVisitor& visitor);
  /// Of what it keeps all is dear.
  Cost cost(const CostShape& shape) const;

  std::int64_t experts() const { return logits_->experts(); }
  /// Choices of a token, absent ones included.
  std::int64_t slots() const {
    return options_.gate.choice == GateRule::Choice::expert_choice ? experts() : options_.per_token;
  }

 private:
  /// Of choices that a capacity may make absent.
  struct Choices {
    Tensor made_TK, kept_TK;
  };

  bool balances() const { return options_.loss.balance != 0.0; }
  bool has_loss() const { return balances() || options_.loss.z != 0.0; }
  bool limits() const { return options_.gate.capacity.limits() && !experts_choose(); }
  bool experts_choose() const { return options_.gate.choice == GateRule::Choice::expert_choice; }
  /// Whether weights were divided by a sum over choices that were dropped then.
  bool weighs_dropped() const { return limits() && !options_.gate.capacity.renormalizes; }
  bool balances_sequences() const {
    return balances() && options_.gate.balance == Balance::sequence;
  }
  /// Whether counts of this micro-batch are needed.
  bool counts_choices() const { return balances() && options_.gate.balance != Balance::global; }

  /// The router's bias in the dtype of logits; nothing where it has none.
  Tensor bias(DType dtype, Ctx& ctx) const;
  /// Fills routing; logits may get noise.
  void choose(const Tensor& logits_TE, const Routing& routing, Ctx& ctx) const;
  void choose_trained(const Tensor& logits_TE, const Routing& routing, Ctx& ctx) const;
  /// Leaves in routing what there is room for, and returns what was chosen.
  Tensor drop(const Tensor& logits_TE, const Routing& routing, Ctx& ctx) const;
  /// Of the tokens that x has, among all of the step.
  std::vector<std::uint64_t> token_numbers(std::int64_t tokens, const Ctx& ctx) const;
  std::int64_t place(std::int64_t token, const Ctx& ctx) const;
  /// A layer's count of lost tokens becomes NaN where logits are not finite, and stays so in the
  /// step's sum over ranks.
  void mark_bad(const Tensor& logits_TE, Ctx& ctx) const;
  /// Tells Ctx::routing, where it is there.
  std::int64_t first_token(const Ctx& ctx) const;
  /// Of what is drawn for `purpose` in this step.
  std::uint64_t draw_key(const char* purpose, const Ctx& ctx) const;
  /// Choices by expert, of the whole micro-batch; with Balance::sequence a row for each sequence.
  Tensor count(const Tensor& experts_TK, DType dtype, Ctx& ctx) const;
  /// Tokens [begin, end) that follow each other in a sequence.
  struct SequenceRun {
    std::int64_t sequence, begin, end;
  };
  std::vector<SequenceRun> runs_of(std::int64_t tokens, const Ctx& ctx) const;
  Tensor sequences_of(std::int64_t tokens, Ctx& ctx) const;
  void add_losses(const Tensor& logits_TE, const Tensor& counts, const Tensor& dlogits_TE,
                  Ctx& ctx) const;
  void add_losses_by_sequence(const Tensor& logits_TE, const Tensor& counts_SE1,
                              const ops::RouterLoss& loss, const Tensor& dlogits_TE,
                              Ctx& ctx) const;
  /// Counts of the step before, as `count` gives them.
  Tensor last_counts(DType dtype, Ctx& ctx) const;

  enum Slot { kLogits, kExperts, kMade, kWeights, kCounts };
  enum Child { kOfLogits };
  const std::unique_ptr<RouterLogits> logits_;
  const Options options_;
};

}  // namespace heddle
