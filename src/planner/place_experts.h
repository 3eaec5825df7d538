#pragma once

#include "parallel/experts/expert_placement.h"

namespace heddle::planner {

struct PlacedExperts {
  ExpertPlacement placement = {};
  double hops = 0.0;
  double least_hops = 0.0;  ///< no placement has fewer
  bool is_exact = false;    ///< this one has the fewest

  /// What `hops` may be above the fewest, as a share of these.
  double gap() const { return least_hops > 0.0 ? hops / least_hops - 1.0 : 0.0; }
};

/// Ways to divide `experts` into `ranks` groups of one size, groups having no names.
double count_partitions(int experts, int ranks);
/// Up to this many are tried, layer by layer: then the placement has the fewest hops.
inline constexpr double kMostPartitions = 1000;

/// A placement with few hops (docs/design/043-experts-schedules-and-places.md): the best one where
/// there are few partitions of a layer, otherwise by coordinate descent, with a bound. `ranks`
/// divides the number of experts. Deterministic.
PlacedExperts place_experts(const ExpertAffinity& affinity, int ranks);
/// By coordinate descent whatever the size.
PlacedExperts place_experts_by_descent(const ExpertAffinity& affinity, int ranks);

/// Nodes first, then the ranks of each node among its experts; ranks of a node are neighbours.
/// `between_nodes`: how many of the hops leave the node. Exact only where one of both numbers is 1.
struct PlacedOnNodes {
  PlacedExperts placed = {};
  double between_nodes = 0.0;
};
PlacedOnNodes place_experts_on_nodes(const ExpertAffinity& affinity, int nodes, int per_node);

}  // namespace heddle::planner
