#include "planner/experts_generation.h"

namespace heddle::planner {

GenerationTraffic two_exchanges(const GenerationShape& shape) {
  const int others = shape.ranks - 1;
  const double rows =
      2 * shape.sequences * shape.layers * shape.choices * shape.leaves * shape.hidden;
  return {.bytes = rows * shape.element_bytes +
                   others * (shape.layers * (shape.experts + 1) * kNumberBytes +
                             shape.sequences * kNumberBytes),
          .calls = 3 * shape.layers + 1};
}

GenerationTraffic one_exchange(const GenerationShape& shape) {
  const int others = shape.ranks - 1;
  const double rows =
      shape.sequences * shape.hidden * (shape.leaves + (shape.layers - 1) * shape.leaves_placed);
  const double context = others * shape.sequences * shape.attention_layers * shape.key_values;
  return {.bytes = (rows + context) * shape.element_bytes +
                   others * shape.sequences * (2 * shape.layers + 1) * kNumberBytes,
          .calls = 2 * shape.layers + 1};
}

}  // namespace heddle::planner
