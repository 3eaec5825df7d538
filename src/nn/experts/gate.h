#pragma once

#include <cstdint>
#include <string>

#include "ops/gate.h"

namespace heddle {

/// How many tokens of a rank's micro-batch an expert takes in training, and whom it loses. A group
/// of tokens is what one rank routes: with other ranks beside it, it is another one.
struct Capacity {
  /// With T tokens, E experts and K choices a token:
  ///   megatron   ceil(factor K T / E)
  ///   deepspeed  the same, but `least` at least
  ///   tutel      K floor(factor ceil(T / E)), rounded up to a multiple of `multiple`; where the
  ///              factor is negative, as if it were positive and without rounding: what Tutel
  ///              limits then is the padding, and there is none here
  enum class Formula : std::uint8_t { megatron, deepspeed, tutel };

  double factor = 0.0;  ///< 0: as much as is chosen, nothing is dropped
  Formula formula = Formula::megatron;
  std::int64_t least = 4, multiple = 1;
  ops::Victims victims = ops::Victims::late_slots;
  /// Weights of the choices that are left are divided by their own sum; otherwise by the sum of all
  /// that were made. Of rules that divide at all.
  bool renormalizes = false;

  bool limits() const { return factor != 0.0; }
  /// Of each expert. Throws Error(usage) where that is none.
  std::int64_t rows(std::int64_t tokens, std::int64_t experts, std::int64_t per_token) const;
};

/// What the shares are taken of that a loss of balance pulls together, and what they are at balance
/// of K choices among E experts.
enum class Balance : std::uint8_t {
  choices,        ///< choices by token of the micro-batch, K / E (transformers)
  first_choices,  ///< tokens' first choices, 1 / E (Switch, GShard)
  shares,         ///< choices by choice, 1 / E (Megatron-LM)
  sequence,       ///< the same of each sequence by itself (DeepSeek-V3)
  global          ///< the same of all tokens of the step before
};

/// How a gate chooses, beside what ops::RouterRule says. Noise and capacities are of training;
/// where there is no backward, tokens get what they choose.
struct GateRule {
  enum class Choice : std::uint8_t {
    top_scores,
    /// By a transport plan that gives all experts alike, without a gradient. Not in inference,
    /// where tokens choose by their scores.
    sinkhorn,
    /// Experts choose tokens, each its share of all choices. A token's experts then depend on the
    /// tokens behind it.
    expert_choice
  };
  Choice choice = Choice::top_scores;
  ops::SinkhornRule sinkhorn = {};
  /// gaussian: of scores, divided by the number of experts (Tutel). gumbel: of the choice alone.
  ops::Noise noise = ops::Noise::none;
  double noise_scale = 1.0;
  Capacity capacity = {};
  Balance balance = Balance::choices;
};

}  // namespace heddle
