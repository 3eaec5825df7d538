#pragma once

// SkipPipe's published cluster: 20 nodes in 12 regions, whose routes and expected times are known.

#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "simulator/play_routes.h"

namespace heddle {

inline constexpr const char* kRegions[] = {"Bel", "Can", "Ger", "Iow", "Jap", "LA",
                                           "NL",  "Ore", "Sin", "Tai", "Lon", "Aus"};

/// Milliseconds / MiB/s, both ways.
inline constexpr const char* kLinks = R"(
Aus: Bel 129/10.1 Can 98/13.5 Ger 125.5/10.7 Iow 84/11.5 Jap 58/14.1 LA 69/15.0 Lon 132/9.6 NL 128/9.8 Ore 68/15.0 Sin 48/30.5 Tai 67/21.5
Bel: Can 41/20.4 Ger 4/248 Iow 49/29.0 Jap 112/12.0 LA 70/19.9 Lon 3.5/248 NL 3/248 Ore 66/21.4 Sin 83/16.5 Tai 105/12.8
Can: Ger 44/32.6 Iow 14/77.5 Jap 74/18.5 LA 35/31.2 Lon 38.5/37.2 NL 42/25.6 Ore 30.5/48.2 Sin 107/12.2 Tai 89/15.1
Ger: Iow 53.5/27.2 Jap 112/11.3 LA 73/18.7 Lon 6.6/193 NL 3.5/248 Ore 68/15.3 Sin 80/12.8 Tai 102/12.9
Iow: Jap 72.5/14.3 LA 23.4/62.9 Lon 48.1/22.4 NL 51/28.1 Ore 19.3/92.5 Sin 101.5/12.9 Tai 88/13.1
Jap: LA 50/28.4 Lon 107/9.1 NL 108.5/11.7 Ore 46.2/31.2 Sin 35.6/39.9 Tai 19.2/78.6
LA: Lon 68/15.3 NL 71.5/14.6 Ore 12.4/121 Sin 79.5/17.2 Tai 64/16.6
Lon: NL 4.8/24.2 Ore 64/21.8 Sin 85/16.1 Tai 109.5/9.2
NL: Ore 67/20.9 Sin 81.5/16.8 Tai 105.5/12.2
Ore: Sin 78.5/17.2 Tai 59.5/23.9
Sin: Tai 23.2/63.4)";

inline constexpr double kForward = 0.44, kMessageBytes = 33554648, kMib = 1024 * 1024;

/// Seconds of a message from node to node, and 0.35 s of the hosts.
inline std::function<double(int, int)> cluster_hops() {
  std::map<std::pair<std::string, std::string>, double> seconds;
  std::istringstream lines(kLinks);
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
