#pragma once

#include <string_view>
#include <vector>

#include "planner/gradient_windows.h"

namespace heddle::planner {

/// A layer of experts behind a dense part, on the ranks of a node that share tokens.
struct ExpertsBlock {
  ExpertsLayerShape experts = {};
  double dense_forward = 0.0, dense_backward = 0.0;  ///< seconds
  double gradients = 0.0;  ///< elements of the dense part that a rank sums with other nodes
};

/// Attention of `sequences` sequences as the dense part: four products of hidden x hidden and two
/// of tokens x tokens, divided over the ranks, with a gather and a scatter of its tokens.
ExpertsBlock attention_and_experts(const ExpertsTimings& timings, const ExpertsLayerShape& experts,
                                   double sequences);

/// Ways to do a step, each with what those before it have.
enum class ExpertsMethod {
  pipelined,  ///< Tutel: chunks of one degree for both passes, one network, gradients at the end
  dense,      ///< gradients beside dense parts
  windows,    ///< gradients in all windows, a degree for each pass
  lanes       ///< FSMoE: both networks at once
};
inline constexpr ExpertsMethod kExpertsMethods[] = {ExpertsMethod::pipelined, ExpertsMethod::dense,
                                                    ExpertsMethod::windows, ExpertsMethod::lanes};
std::string_view name_of(ExpertsMethod method);

struct ExpertsStep {
  ExpertsMethod method = ExpertsMethod::lanes;
  ChosenPass forward = {};  ///< of every layer
  GradientSlices backward = {};
  double seconds = 0.0;  ///< both passes of all layers, and sums of gradients
};

/// A step of `layers` equal blocks. One block stands for one of very many: it sends the gradients
/// of the block above it.
ExpertsStep plan_experts(const ExpertsTimings& timings, const ExpertsBlock& block, int layers,
                         ExpertsMethod method);

}  // namespace heddle::planner
