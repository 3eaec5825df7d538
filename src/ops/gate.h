#pragma once

#include <span>

#include "ops/experts.h"

namespace heddle::ops {

// What gates of mixtures of experts do beside `route` (ops/experts.h, whose words these are): other
// ways to choose, capacities, noise, and counts. Choices are made first and weighed then, so that
// all rules share one gradient, route_backward: of the weights of the choices that are given to it.
// What draws random numbers, choose_tokens and choose_by_plan are of the CPU; a GPU is refused by
// name.

/// weights[t, k] = what `route` gives to the choice, whoever made it; 0 where it is absent.
void weigh_choices(const Tensor& logits_TE, const RouterRule& rule, const Tensor& experts_TK,
                   const Tensor& weights_TK, Stream& stream);

/// Whom an expert loses that more tokens choose than it has room for. Tokens are in the order of
/// their rows.
enum class Victims : std::uint8_t {
  late_slots,   ///< first choices of all tokens come before second ones (GShard)
  late_tokens,  ///< tokens come one after the other with all of their choices
  unsure,       ///< as late_slots, but tokens come by their best score (batch-prioritised)
  low_scores,   ///< the lowest scores, of equal ones the later
  random        ///< by a number drawn for every choice
};

/// Random numbers of tokens: a function of key and the token's number, wherever it is computed.
struct TokenDraw {
  std::uint64_t key = 0;
  std::span<const std::uint64_t> numbers = {};  ///< of the tokens
};

/// Makes the choices of every expert absent that are more than `capacity`. scores_TK: of the
/// choices; a NaN is the lowest. `draw` is for Victims::random.
void drop_choices(const Tensor& scores_TK, Victims victims, std::int64_t capacity,
                  const TokenDraw& draw, std::int64_t experts, const Tensor& experts_TK,
                  Stream& stream);

/// Every expert chooses the `capacity` tokens whose softmax is highest for it, of equal ones the
/// earlier: slot e of a token is expert e or absent.
void choose_tokens(const Tensor& logits_TE, std::int64_t capacity, const Tensor& experts_TE,
                   Stream& stream);

/// A transport plan that gives all experts the same number of tokens, by scaling rows and columns
/// of exp(gain * logits) in turn.
struct SinkhornRule {
  double gain = 2.0;        ///< BlackMamba's; Megatron-LM has 1
  int passes = 3;           ///< at most
  double tolerance = 1e-2;  ///< relative change of the column factors at which it ends
};
/// For every token the K experts with the most of its row of the plan.
void choose_by_plan(const Tensor& logits_TE, const SinkhornRule& rule, const Tensor& experts_TK,
                    Stream& stream);

enum class Noise : std::uint8_t { none, gaussian, gumbel };
/// logits += scale times a number of the distribution for each.
void add_noise(const Tensor& logits_TE, Noise noise, double scale, const TokenDraw& draw,
               Stream& stream);

/// load (f64, E + 2 elements) += choices of every expert as they were `made`; choices of them that
/// were not `kept`; and tokens of which none was. Exact up to 2^53.
void add_load(const Tensor& made_TK, const Tensor& kept_TK, const Tensor& load, Stream& stream);

/// counts (of the dtype of logits) = choices of every expert by token, behind them 1: as if the
/// tokens of which `load` is (add_load) were one that makes `per_token` choices. Without any load
/// no expert is chosen.
void counts_of_load(const Tensor& load, std::int64_t per_token, const Tensor& counts_E1,
                    Stream& stream);

/// counts (of the dtype of logits) of sequence s, in row s: choices of every expert, and tokens.
/// sequence_T (i32) names the sequence of a token; only the first `slots` choices count.
void count_by_sequence(const Tensor& experts_TK, const Tensor& sequence_T, std::int64_t slots,
                       const Tensor& counts_SE1, Stream& stream);

/// bias[i] += rate * sign(mean - load) of expert begin + i, whose loads (f64) are all there: the
/// bias may be a stretch of one. Nothing where the clip (f32, one element) is not finite, as of
/// optimizers. DeepSeek-V3's, once a step.
void balance_bias(const Tensor& load_E, double rate, const Tensor& clip, std::int64_t begin,
                  const Tensor& bias, Stream& stream);

}  // namespace heddle::ops
