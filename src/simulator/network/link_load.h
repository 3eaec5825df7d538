#pragma once

#include <array>
#include <vector>

#include "simulator/network/play_program.h"

namespace heddle::network {

/// What every link carries in the whole program, without playing it.
std::vector<double> link_bytes(const Topology& topology, const FlowProgram& program,
                               const PlayOptions& options);

/// The link that takes longest for its bytes. No program can be done earlier.
struct BusiestLink {
  int link = 0;
  double seconds = 0.0;
};
BusiestLink busiest_link(const Topology& topology, const std::vector<double>& bytes);

/// How links of one kind, to hosts or between switches, are used while `seconds` pass: bytes over
/// what they could carry.
struct Utilisation {
  double mean = 0.0, highest = 0.0;
  std::array<int, 10> histogram = {};  ///< links by tenth; the last has those above 0.9
};
Utilisation utilisation(const Topology& topology, const std::vector<double>& bytes, double seconds,
                        bool is_of_hosts);

}  // namespace heddle::network
