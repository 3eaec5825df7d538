#include "planner/experts_generation.h"

namespace heddle::planner {
namespace {

constexpr double kTokenBytes = 4;

}  // namespace

GenerationTraffic two_exchanges(const GenerationShape& shape) {
  return {.bytes = 2 * shape.sequences * shape.layers * shape.leaves * shape.hidden *
                   shape.element_bytes,
          .calls = 2 * shape.layers};
}

GenerationTraffic one_exchange(const GenerationShape& shape) {
  const double rows = shape.sequences * shape.layers * shape.leaves_placed * shape.hidden;
  const double context = (shape.ranks - 1) * shape.sequences * shape.layers * shape.key_values;
  return {.bytes = (rows + context) * shape.element_bytes +
                   (shape.ranks - 1) * shape.sequences * kTokenBytes,
          .calls = shape.layers + 1};
}

}  // namespace heddle::planner
