#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "planner/compare_links.h"
#include "planner/finalists.h"
#include "planner/placement.h"

namespace heddle::planner {

/// How many plans a report shows.
inline constexpr std::size_t kPlansShown = 8;

/// Everything that was found out about a job on a machine.
struct PlanReport {
  struct NearMiss {
    Found found;
    std::string reason;
  };
  struct Mapping {
    Placement placement;
    double in_order_seconds = 0;  ///< what the same costs with servers in their given order
  };

  /// What all tokens choosing the experts of one rank would make of the plan to take.
  struct MostRows {
    double times = 1;  ///< the rows that it receives, in multiples of an even share
    MemoryEstimate memory = {};
  };

  std::string model;
  Machine machine;  ///< as that many ranks find it
  const Job& job;
  SearchOptions options;
  SearchResult result;
  double search_seconds = 0;
  std::vector<Finalist> plans;  ///< the one to take first, then by time
  std::vector<NearMiss> near_misses;
  std::vector<std::string> advice;
  std::vector<ContextCost> methods;          ///< of the plan to take, where cp is above 1
  std::optional<Mapping> mapping;            ///< where the machine file has measured pairs
  std::optional<MostRows> most_rows = {};    ///< where experts are divided over ranks
  std::optional<LinkComparison> links = {};  ///< where links between servers were given

  double tokens_per_step() const { return static_cast<double>(job.batch * job.seq_len); }
};

/// Searches, simulates the best and explains. Where links are given, servers are joined by these,
/// and it is compared what to send less of. Error(resources) when nothing fits: how much the
/// smallest layout needs, and about how many devices would do.
PlanReport make_report(const std::string& model, const Machine& machine, const Job& job,
                       const SearchOptions& options,
                       const std::optional<GivenLinks>& links = std::nullopt);

/// Why the plan to take shares sequences: "nothing fits without it"; empty where cp is 1.
std::string why_context(const PlanReport& report);

/// What memory holds if all ranks receive as many rows for their experts, and what it is at most;
/// empty where experts are not divided.
std::string most_rows_text(const PlanReport& report);

/// Model FLOPs over what the devices could do in the time.
double model_flops_utilization(const PlanReport& report, double seconds);

/// What the busiest rank, the first of the pipeline, counts in a step.
struct AxisTraffic {
  std::string axis, operation;
  std::int64_t calls = 0, payload_bytes = 0, wire_bytes = 0;
};
std::vector<AxisTraffic> traffic_of(const PlanReport& report, const Candidate& plan);

std::string report_text(const PlanReport& report);
JsonValue report_json(const PlanReport& report);
/// The first plan as sections of a run file; where links were compared, what is advised.
std::string plan_toml(const PlanReport& report);

}  // namespace heddle::planner
