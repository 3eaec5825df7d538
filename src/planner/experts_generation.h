#pragma once

namespace heddle::planner {

/// Generation with experts divided over ranks, each of which has its own sequences.
struct GenerationShape {
  int ranks = 1;
  int layers = 1;            ///< with experts
  int attention_layers = 1;  ///< with and without
  int experts = 1;           ///< of a layer
  int choices = 1;           ///< of a token in a layer, each with a row of its own
  double sequences = 1;      ///< of a rank: as many new tokens in an iteration
  double hidden = 0,
         key_values = 0;  ///< elements of a token: a row, and keys with values of a layer
  double element_bytes = 2;
  double leaves = 0;  ///< share of rows whose expert lies on another rank than their sequence
  double leaves_placed =
      0;  ///< share whose expert lies on another rank than that of the layer before
};

/// Of a count, a choice, a weight or a token.
inline constexpr double kNumberBytes = 4;

/// What the mean rank sends in an iteration, in how many calls. How long these take is
/// generation_time's to say.
struct GenerationTraffic {
  double bytes = 0;
  int calls = 0;
};

/// Rows go to their experts and home again in each layer, after ranks have told each other how many
/// they have for each expert; new tokens go to all.
GenerationTraffic two_exchanges(const GenerationShape& shape);
/// Rows stay where their expert was, and go on from there, after ranks have told each other which
/// expert each row has, and its weight. Every rank attends with every
/// sequence's keys and values, so the new ones of all layers go to all ranks, with the tokens, once
/// an iteration; every rank then has the memory for all of them. For one expert a token.
GenerationTraffic one_exchange(const GenerationShape& shape);

}  // namespace heddle::planner
