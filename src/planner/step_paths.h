#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "planner/collectives.h"
#include "planner/simulated_step.h"

namespace heddle::planner {

/// The groups of devices that are played, and where they stand: those of tp and cp, which wait for
/// each other in every block, are one. Numbered replica by replica, pp ranks ascending.
struct PlayedRanks {
  int tp = 1, pp = 1, dp = 1, cp = 1;
  std::vector<int> replicas;  ///< of dp, ascending; those that are left out are like the first

  int count() const { return static_cast<int>(replicas.size()) * pp; }
  int pp_rank(int rank) const { return rank % pp; }
  int replica(int rank) const { return replicas[static_cast<std::size_t>(rank / pp)]; }
  int group_size() const { return tp * cp; }
  /// The group's first device; the others follow, tp fastest.
  int device(int rank) const { return (pp_rank(rank) * dp + replica(rank)) * group_size(); }
};

/// Works out what transfers between played ranks take, and which links: those of the machine's
/// tiers, of which every device has one out and one in, or of a topology.
class StepPaths {
 public:
  /// All outlive it. Error(usage) when the topology has too few hosts or the machine too few pairs.
  StepPaths(const Machine& machine, const PlayedRanks& ranks, const StepOptions& options);

  /// A message of `bytes` from every device of a group to its counterpart, `extra_seconds` later.
  int message(int from, int to, double bytes, double extra_seconds);
  /// Whom of each member's group a collective joins: those of one rank of tp and cp, or all ranks
  /// of cp of one rank of tp.
  enum class Joins : std::uint8_t { one, context };
  /// A collective on tensors of `bytes` among devices of `members`; there may be more members than
  /// are played. `gathers` above 0: it is ZeRO-3's, in so many calls, at the speed that the machine
  /// has for them.
  int collective(const std::vector<int>& members, const GroupShape& group, CommOp op, double bytes,
                 Joins joins = Joins::one, double gathers = 0.0);

  /// Both are the program's.
  std::vector<double> take_capacities() { return std::move(capacities_); }
  std::vector<StepProgram::Path> take_paths() { return std::move(paths_); }

 private:
  enum Direction { out, in };

  int server_of(int device) const { return device / machine_.server_size(); }
  int tier_between(int a, int b) const;
  int tier_of_group(const GroupShape& group) const;
  bool is_through_topology(int tier) const { return tier > 0 && router_.has_value(); }
  int link(int rank, int tier, Direction direction) const;
  /// Measured bandwidth between the servers of two devices, or nothing.
  std::optional<double> pair_rate(int device, int other) const;
  int keep(StepProgram::Path path);
  void add_flow(StepProgram::Path& path, int source, int destination, double bytes);
  void add_ring(StepProgram::Path& path, std::vector<int> devices, double bytes);
  double slowest_pair(const std::vector<int>& devices) const;

  const Machine& machine_;
  const PlayedRanks& ranks_;
  const StepOptions& options_;
  int tiers_;
  std::vector<double> capacities_;  ///< of tiers 1, as shares of time; of a topology bytes/s
  std::optional<network::Router> router_;
  int first_topology_link_ = 0;
  std::vector<StepProgram::Path> paths_;
  std::map<std::tuple<int, int, double, double>, int> messages_;
  std::map<std::tuple<std::vector<int>, int, CommOp, double>, int> collectives_;
};

}  // namespace heddle::planner
