#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "config/run_config.h"
#include "model/parallel_plan.h"
#include "parallel/sequence/context_shape.h"

namespace heddle {

/// A way to share attention among the ranks of axis cp, and what it costs a run to take it.
struct ContextChoice {
  ContextShape shape;  ///< resolved
  bool is_taken = false;
  std::string problem = {};  ///< why it cannot be taken; empty: it can
  /// What the rank that sends most sends in the mean layer for one micro-batch, forward and
  /// backward.
  std::int64_t bytes = 0;
  /// The most pairs of query and key that a rank computes, relative to the mean.
  double imbalance = 1.0;
};

/// The attention of a micro-batch without packed documents, by the method of the plan; layers with
/// windows have them beside that.
ContextShape microbatch_shape(const config::RunConfig& config, const ModelSpec& spec,
                              const ParallelPlan& plan);

/// All methods, for micro-batches without packed documents; none where cp is 1.
std::vector<ContextChoice> context_choices(const config::RunConfig& config, const ModelSpec& spec,
                                           const ParallelPlan& plan);

/// A line each: "ring, zigzag: sends at most 1.2 MiB a layer and micro-batch, balance 1.00
/// (taken)".
std::vector<std::string> describe_context(const std::vector<ContextChoice>& choices);
JsonValue to_json(const std::vector<ContextChoice>& choices);

}  // namespace heddle
