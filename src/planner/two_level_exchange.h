#pragma once

#include <optional>

#include "planner/machine.h"

namespace heddle::planner {

/// Ranks on nodes that all exchange with each other, as an all-to-all sees them.
struct ExchangeNetwork {
  int nodes = 1, per_node = 1;
  double message_between = 0.0, message_within = 0.0;  ///< seconds that each message costs
  double latency_between = 0.0, latency_within = 0.0;  ///< that all of them wait for once
  double rate_between = 1.0, rate_within = 1.0;        ///< bytes per second of a rank
  double copy_rate = 1.0;                              ///< of memory, bytes read or written

  int ranks() const { return nodes * per_node; }
};

/// Of the machine's innermost tier and of what joins so many nodes. As in collective_seconds every
/// message costs a link's latency, one after the other; over direct links (Link::is_direct) all
/// cost it once, and each what Link::message_s says. Neighbours are `stride` devices apart.
ExchangeNetwork exchange_network(const Machine& machine, int nodes, int per_node, int stride = 1);

/// Seconds of an all-to-all in which every rank has `bytes` for all together, equally for each.

/// Every rank sends to every other: one message after the other, whichever way they go; their bytes
/// travel on both networks at once.
double linear_exchange_seconds(const ExchangeNetwork& network, double bytes);
/// Within the node what goes to the same place in other nodes is brought together, then ranks of
/// the same place exchange (Tutel's 2DH): few large messages between nodes, for a second exchange
/// within them and two copies.
double two_level_exchange_seconds(const ExchangeNetwork& network, double bytes);

/// Below this many bytes of a rank two levels are faster; absent: never (one node, one rank each).
std::optional<double> two_level_crossover(const ExchangeNetwork& network);

}  // namespace heddle::planner
