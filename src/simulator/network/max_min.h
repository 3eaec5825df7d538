#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "simulator/network/routing.h"

namespace heddle::network {

/// Max-min fair rates by progressive filling: no flow can have more without one that has no more
/// than it having less. Keeps its working memory between calls; one thread at a time.
class MaxMin {
 public:
  /// Capacities by link, all above 0.
  explicit MaxMin(std::vector<double> capacities);

  /// Sets rates[i] of a flow with links flows[i], at least one each. Takes time in proportion to
  /// the links of all flows, whatever the size of the network.
  void solve(std::span<const std::span<const LinkShare>> flows, std::span<double> rates);

 private:
  struct Use {
    double left = 0.0;                 ///< capacity that no fixed flow has
    double shares = 0.0;               ///< of flows that are not fixed
    int flows = 0;                     ///< not fixed
    std::uint32_t first = 0, end = 0;  ///< in flows_by_link_
  };

  void count(std::span<const std::span<const LinkShare>> flows);

  std::vector<double> capacities_;
  std::vector<Use> uses_;  ///< by link; of use only for used_
  std::vector<int> used_;  ///< links
  std::vector<std::uint32_t> flows_by_link_;
};

}  // namespace heddle::network
