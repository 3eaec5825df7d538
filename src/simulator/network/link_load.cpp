#include "simulator/network/link_load.h"

#include <algorithm>

#include "simulator/network/placement.h"

namespace heddle::network {

std::vector<double> link_bytes(const Topology& topology, const FlowProgram& program,
                               const PlayOptions& options) {
  const auto hosts = place_ranks(topology, program.ranks(), options.placement);
  Router router(topology, options.routing);
  std::vector<double> bytes(topology.links().size());
  std::vector<Outgoing> messages;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    for (const Round& round : program.by_rank[rank]) {
      messages.clear();
      for (const auto& [peer, size] : round.sends) {
        messages.push_back({hosts[static_cast<std::size_t>(peer)], size});
      }
      for (const Piece& piece : router.route(hosts[rank], messages)) {
        for (const auto& [link, share] : piece.links) {
          bytes[static_cast<std::size_t>(link)] += share * piece.bytes;
        }
      }
    }
  }
  return bytes;
}

BusiestLink busiest_link(const Topology& topology, const std::vector<double>& bytes) {
  BusiestLink busiest;
  for (std::size_t link = 0; link < bytes.size(); ++link) {
    const double seconds = bytes[link] / topology.links()[link].speed.bytes_per_second;
    if (seconds > busiest.seconds) busiest = {static_cast<int>(link), seconds};
  }
  return busiest;
}

Utilisation utilisation(const Topology& topology, const std::vector<double>& bytes, double seconds,
                        bool is_of_hosts) {
  Utilisation result;
  int links = 0;
  for (std::size_t link = 0; link < bytes.size(); ++link) {
    if (topology.is_host_link(static_cast<int>(link)) != is_of_hosts || seconds <= 0.0) continue;
    const double used = bytes[link] / (topology.links()[link].speed.bytes_per_second * seconds);
    ++links;
    result.mean += used;
    result.highest = std::max(result.highest, used);
    ++result.histogram[static_cast<std::size_t>(std::clamp(used * 10.0, 0.0, 9.0))];
  }
  if (links > 0) result.mean /= links;
  return result;
}

}  // namespace heddle::network
