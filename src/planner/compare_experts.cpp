#include "planner/compare_experts.h"

#include <array>

namespace heddle::planner {
namespace {

/// Degree with which both passes together are shortest.
int common_degree(const ExpertsTimings& timings, const ExpertsLayerShape& layer) {
  int best = 1;
  double least = 0.0;
  for (const int degree : kExpertsDegrees) {
    double seconds = 0.0;
    for (const auto direction : {ExpertsDirection::forward, ExpertsDirection::backward}) {
      seconds += pass_of(timings, layer, direction, true, degree).seconds;
    }
    if (degree == kExpertsDegrees[0] || seconds < least) {
      best = degree;
      least = seconds;
    }
  }
  return best;
}

GradientWindows windows_of(ExpertsMethod method) {
  switch (method) {
    case ExpertsMethod::pipelined: return GradientWindows::none;
    case ExpertsMethod::dense: return GradientWindows::dense;
    case ExpertsMethod::windows:
    case ExpertsMethod::lanes: return GradientWindows::all;
  }
  return GradientWindows::all;
}

}  // namespace

ExpertsBlock attention_and_experts(const ExpertsTimings& timings, const ExpertsLayerShape& experts,
                                   double sequences) {
  const double tokens = experts.tokens, hidden = experts.hidden, shards = experts.shards;
  // q, k and v are one product.
  const double products = timings.product(3 * tokens * hidden * hidden / shards) +
                          timings.product(tokens * hidden * hidden / shards) +
                          2 * timings.product(tokens * tokens / sequences * hidden / shards);
  const double shared = experts.shards == 1
                            ? 0.0
                            : timings.gather(tokens * hidden) + timings.scatter(tokens * hidden);
  return {.experts = experts,
          .dense_forward = products + shared,
          .dense_backward = 2 * products + shared,
          .gradients = 4 * hidden * hidden / shards};
}

std::string_view name_of(ExpertsMethod method) {
  constexpr std::array<std::string_view, 4> kNames = {"pipelined", "dense", "windows", "lanes"};
  return kNames[static_cast<std::size_t>(method)];
}

ExpertsStep plan_experts(const ExpertsTimings& timings, const ExpertsBlock& block, int layers,
                         ExpertsMethod method) {
  const bool has_one_network = method != ExpertsMethod::lanes;
  const bool has_one_degree = windows_of(method) != GradientWindows::all;
  const int common = has_one_degree ? common_degree(timings, block.experts) : 0;
  const auto pass = [&](ExpertsDirection direction, double gradient_seconds) {
    return has_one_degree
               ? pass_of(timings, block.experts, direction, has_one_network, common,
                         gradient_seconds)
               : choose_pass(timings, block.experts, direction, has_one_network, gradient_seconds);
  };
  const BackwardLayer backward{
      .experts = [&](double seconds) { return pass(ExpertsDirection::backward, seconds); },
      .dense_seconds = block.dense_backward,
      .gradients = layers == 1 ? 0.0 : block.gradients};
  const double carried = layers == 1 ? block.gradients : 0.0;
  ExpertsStep step{.method = method,
                   .forward = pass(ExpertsDirection::forward, 0.0),
                   .backward = place_gradients(
                       std::vector<BackwardLayer>(static_cast<std::size_t>(layers), backward),
                       timings.sum, carried, windows_of(method))};
  step.seconds = layers * (step.forward.seconds + block.dense_forward) + step.backward.seconds;
  return step;
}

}  // namespace heddle::planner
