#pragma once

#include <optional>
#include <string>

#include "planner/machine.h"

namespace heddle::planner {

/// What joins servers, as somebody says who has them.
struct GivenLinks {
  double bytes_per_s = 0;  ///< of a server's link, each way
  /// What a device sends when all send to all others, where that was measured.
  std::optional<double> exchange_bytes_per_s = {};
  bool is_content = false;          ///< measured with messages: headers and losses are left out
  std::optional<double> latency_s;  ///< one way; absent: the machine file's
  double loss = 0;                  ///< share of packets
  int devices = 0;                  ///< that share a server's link; 0: as the machine file has it
  std::string text;                 ///< "100 Mbit/s, 50 ms"
};

/// The machine with its outermost tier replaced by these links. A machine of one tier becomes many
/// of `devices` each (1 when left out). Error(usage) for a number of devices that contradicts the
/// file.
Machine with_links(Machine machine, const GivenLinks& links);

/// Devices that reach each other without the outermost tier.
int devices_inside(const Machine& machine);

}  // namespace heddle::planner
