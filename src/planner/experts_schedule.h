#pragma once

#include "nn/experts/experts_pass.h"
#include "planner/linear_time.h"
#include "planner/machine.h"

namespace heddle::planner {

/// What the parts of a layer of experts take by their sizes: elements of a rank that are exchanged,
/// gathered (together), scattered, summed; multiplications of a product.
struct ExpertsTimings {
  LinearTime exchange = {}, gather = {}, scatter = {}, sum = {}, product = {};
};

/// Lines through what a machine file says, for experts that are divided over `nodes` nodes, each
/// over all `per_node` ranks of its node (docs/design/043-experts-schedules-and-places.md).
ExpertsTimings experts_timings(const Machine& machine, int nodes, int per_node, DType dtype);

/// A layer of experts whose width is divided over `shards` ranks of a node, which share tokens.
struct ExpertsLayerShape {
  double tokens = 0.0;          ///< of these ranks together
  double rows_per_token = 2.0;  ///< experts of a token times the capacity factor
  double hidden = 0.0, width = 0.0;
  int products = 3;  ///< of an expert: 3 with a gate, else 2
  int shards = 1;

  double exchanged() const { return rows_per_token * tokens * hidden / shards; }
  double gathered() const { return shards == 1 ? 0.0 : rows_per_token * tokens * hidden; }
  /// Of all products.
  double multiplications() const {
    return products * rows_per_token * tokens * hidden * width / shards;
  }
};

enum class ExpertsDirection { forward, backward };

/// What a chunk takes where the rows are cut into `degree`. Backward multiplies twice.
ExpertsSeconds chunk_seconds(const ExpertsTimings& timings, const ExpertsLayerShape& layer,
                             ExpertsDirection direction, int degree);

struct ChosenPass {
  ExpertsPassShape shape = {};
  ExpertsSeconds chunk = {};
  double seconds = 0.0;
};

/// Degrees that are tried.
inline constexpr int kExpertsDegrees[] = {1, 2, 4, 8};

/// The pass of the given degree with a slice of gradients that takes so long.
ChosenPass pass_of(const ExpertsTimings& timings, const ExpertsLayerShape& layer,
                   ExpertsDirection direction, bool has_one_network, int degree,
                   double gradient_seconds = 0.0);
/// The degree with which the pass is shortest; of equal ones the smallest.
ChosenPass choose_pass(const ExpertsTimings& timings, const ExpertsLayerShape& layer,
                       ExpertsDirection direction, bool has_one_network,
                       double gradient_seconds = 0.0);

}  // namespace heddle::planner
