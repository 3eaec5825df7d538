#pragma once

// SkipPipe's published cluster: 20 nodes in 12 regions, whose routes and expected times are known.

#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "base/file_system.h"
#include "simulator/play_routes.h"
#include "support/source_dir.h"

namespace heddle {

inline constexpr const char* kRegions[] = {"Bel", "Can", "Ger", "Iow", "Jap", "LA",
                                           "NL",  "Ore", "Sin", "Tai", "Lon", "Aus"};

inline constexpr double kForward = 0.44, kMessageBytes = 33554648, kMib = 1024 * 1024;

/// Seconds of a message from node to node, by the latency in milliseconds and the MiB/s of each
/// pair of regions in published_links.txt, and 0.35 s of the hosts.
inline std::function<double(int, int)> cluster_hops() {
  std::map<std::pair<std::string, std::string>, double> seconds;
  std::istringstream lines(read_text_file(source_dir() + "/tests/simulator/published_links.txt"));
  std::string word, from;
  while (lines >> word) {
    if (word.back() == ':') {
      from = word.substr(0, word.size() - 1);
      continue;
    }
    std::string rates;
    lines >> rates;
    const auto slash = rates.find('/');
    const double latency = std::stod(rates.substr(0, slash)) / 1e3;
    const double rate = std::stod(rates.substr(slash + 1)) * kMib;
    seconds[{from, word}] = seconds[{word, from}] = latency + kMessageBytes / rate;
  }
  return [seconds](int a, int b) {
    const std::string one = kRegions[a % 12], other = kRegions[b % 12];
    const double here = 0.001 + kMessageBytes / (2048 * kMib);
    return 0.35 + (one == other ? here : seconds.at({one, other}));
  };
}

inline RouteTimes cluster_times(int memory = 3) {
  return {.forward = std::vector<double>(20, kForward),
          .hop = cluster_hops(),
          .gap = 0.13,
          .memory = memory};
}

inline RouteRules cluster_rules(int length, int memory = 3) {
  return {.nodes_by_stage =
              {{0, 3, 4, 10, 11}, {15, 8, 14}, {1, 9, 6}, {16, 12, 13}, {5, 18, 7}, {17, 2, 19}},
          .length = length,
          .memory = memory};
}

}  // namespace heddle
