#include "planner/experts_schedule.h"

#include <vector>

#include "planner/collectives.h"
#include "planner/gemm.h"

namespace heddle::planner {
namespace {

/// Sizes that lines are fitted to: elements of collectives, and rows of products.
constexpr double kFirstSize = 1 << 18, kFirstRows = 256, kProductWidth = 2048;
constexpr int kCollectiveSizes = 24, kProductSizes = 12;

LinearTime line_of(const Machine& machine, CommOp op, const GroupShape& group, DType dtype) {
  if (group.ranks == 1) return {};
  std::vector<std::array<double, 2>> points;
  for (int i = 1; i <= kCollectiveSizes; ++i) {
    const double elements = i * kFirstSize;
    points.push_back(
        {elements,
         collective_seconds(machine, op, group, elements * static_cast<double>(size_of(dtype)))});
  }
  return fit_linear_time(points).time;
}

LinearTime line_of_products(const Machine& machine, DType dtype) {
  std::vector<std::array<double, 2>> points;
  for (int i = 1; i <= kProductSizes; ++i) {
    const GemmShape shape{.m = i * kFirstRows, .n = kProductWidth, .k = kProductWidth};
    points.push_back({shape.m * shape.n * shape.k,
                      gemm_seconds(machine.device, machine.device.matrix_rate(dtype),
                                   static_cast<double>(size_of(dtype)), shape)});
  }
  return fit_linear_time(points).time;
}

}  // namespace

ExpertsTimings experts_timings(const Machine& machine, int nodes, int per_node, DType dtype) {
  const GroupShape between = group_shape(machine, nodes, per_node),
                   within = group_shape(machine, per_node, 1);
  return {.exchange = line_of(machine, CommOp::all_to_all, between, dtype),
          .gather = line_of(machine, CommOp::all_gather, within, dtype),
          .scatter = line_of(machine, CommOp::reduce_scatter, within, dtype),
          .sum = line_of(machine, CommOp::all_reduce, between, dtype),
          .product = line_of_products(machine, dtype)};
}

ExpertsSeconds chunk_seconds(const ExpertsTimings& timings, const ExpertsLayerShape& layer,
                             ExpertsDirection direction, int degree) {
  const double times = direction == ExpertsDirection::forward ? 1.0 : 2.0;
  const double each = layer.multiplications() / layer.products / degree;
  return {.exchange = timings.exchange(layer.exchanged() / degree),
          .gather = timings.gather(layer.gathered() / degree),
          .expert = times * layer.products * timings.product(each),
          .scatter = timings.scatter(layer.gathered() / degree)};
}

ChosenPass pass_of(const ExpertsTimings& timings, const ExpertsLayerShape& layer,
                   ExpertsDirection direction, bool has_one_network, int degree,
                   double gradient_seconds) {
  ChosenPass pass{.shape = {.degree = degree,
                            .sends_gradients = gradient_seconds > 0.0,
                            .has_one_network = has_one_network},
                  .chunk = chunk_seconds(timings, layer, direction, degree)};
  pass.chunk.gradients = gradient_seconds;
  pass.seconds = makespan(make_experts_pass(pass.shape), pass.chunk);
  return pass;
}

ChosenPass choose_pass(const ExpertsTimings& timings, const ExpertsLayerShape& layer,
                       ExpertsDirection direction, bool has_one_network, double gradient_seconds) {
  ChosenPass best;
  for (const int degree : kExpertsDegrees) {
    const ChosenPass pass =
        pass_of(timings, layer, direction, has_one_network, degree, gradient_seconds);
    if (degree == kExpertsDegrees[0] || pass.seconds < best.seconds) best = pass;
  }
  return best;
}

}  // namespace heddle::planner
