#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/schedule/routes.h"
#include "parallel/schedule/schedule.h"

namespace heddle {

enum class Pipeline : std::uint8_t {
  gpipe,
  one_f_one_b,
  interleaved,
  zb_h1,
  zb_h2,
  zb_v,
  v_min,
  v_half,
  routes
};

/// What a pipeline has to be scheduled for.
struct PipeShape {
  int ranks = 1;
  int microbatches = 1;
  /// Stages per rank. The V-shaped schedules have two by nature, which need not be said.
  int chunks = 1;
  /// 1 or 2: split the vocabulary over the ranks by that algorithm (1f1b and v-half). 1 has two
  /// barriers between forward and backward of the last stage, 2 has one and holds a micro-batch
  /// less; 2 multiplies once more.
  int vocabulary = 0;
  /// Of schedule routes: ranks in the order of a micro-batch's forward, which micro-batches take in
  /// turn (make_routes). Empty: all ranks in order.
  std::vector<Route> routes = {};
};

/// gpipe 1f1b interleaved zb-h1 zb-h2 zb-v v-min v-half routes, as the run file and the command
/// line spell them, in the order of Pipeline.
std::span<const std::string_view> schedule_names();
std::string_view name_of(Pipeline schedule);
/// Error(usage) for a name that no schedule has.
Pipeline pipeline_named(std::string_view name);
/// Two stages of every rank, down the ranks and up again.
constexpr bool is_v_shaped(Pipeline schedule) {
  return schedule == Pipeline::zb_v || schedule == Pipeline::v_min || schedule == Pipeline::v_half;
}

/// The first rank has the last stage too.
constexpr bool ends_meet(Pipeline schedule) {
  return is_v_shaped(schedule) || schedule == Pipeline::routes;
}

/// Computations only (see `lower`). Any number of ranks and micro-batches will do; within one kind
/// of action and one stage micro-batches ascend, so gradients are summed in the same order by every
/// schedule. Error(usage) for chunks, routes or a split vocabulary that the schedule does not have.
Schedule make_schedule(Pipeline schedule, const PipeShape& shape);

}  // namespace heddle
