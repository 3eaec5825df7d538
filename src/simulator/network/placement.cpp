#include "simulator/network/placement.h"

#include <fmt/format.h>

#include <numeric>
#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace heddle::network {
namespace {

void check_hosts(const Topology& topology, int ranks) {
  if (ranks <= topology.hosts()) return;
  throw Error(ErrorCode::usage,
              fmt::format("{} ranks do not fit on the {} hosts of a {}", ranks, topology.hosts(),
                          topology.description()),
              "use fewer ranks or a larger network");
}

}  // namespace

std::vector<int> place_ranks(const Topology& topology, int ranks, const std::vector<int>& given) {
  check_hosts(topology, ranks);
  std::vector<int> hosts = given;
  if (hosts.empty()) {
    hosts.resize(static_cast<std::size_t>(ranks));
    std::iota(hosts.begin(), hosts.end(), 0);
  }
  const std::set<int> distinct(hosts.begin(), hosts.end());
  if (hosts.size() != static_cast<std::size_t>(ranks) || distinct.size() != hosts.size() ||
      (ranks > 0 && (*distinct.begin() < 0 || *distinct.rbegin() >= topology.hosts()))) {
    throw Error(ErrorCode::usage, "the placement does not put each rank on a host of its own",
                fmt::format("name {} different hosts below {}", ranks, topology.hosts()));
  }
  return hosts;
}

std::vector<int> random_placement(const Topology& topology, int ranks, std::uint64_t seed) {
  check_hosts(topology, ranks);
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks; ++rank) {
    hosts.push_back(static_cast<int>(random_permutation(
        rng_key(seed, "placement"), rank, static_cast<std::uint64_t>(topology.hosts()))));
  }
  return hosts;
}

}  // namespace heddle::network
