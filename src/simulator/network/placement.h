#pragma once

#include <cstdint>
#include <vector>

#include "simulator/network/topology.h"

namespace heddle::network {

/// The host of each rank: those given, or rank r on host r when none are. Error(usage) unless every
/// rank has a host of its own.
std::vector<int> place_ranks(const Topology& topology, int ranks, const std::vector<int>& given);

/// Hosts in an order that the seed chooses. Error(usage) when there are too few.
std::vector<int> random_placement(const Topology& topology, int ranks, std::uint64_t seed);

}  // namespace heddle::network
