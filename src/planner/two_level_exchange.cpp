#include "planner/two_level_exchange.h"

#include <algorithm>

#include "planner/collectives.h"

namespace heddle::planner {
namespace {

/// Each of two copies reads and writes.
constexpr double kCopiedBytes = 4.0;
/// Halvings that find the crossover to more digits than any rate has.
constexpr int kHalvings = 100;
constexpr double kMostExchanged = 1e15;

struct Messages {
  double count = 0.0, share = 0.0;  ///< `share` of a rank's bytes is in all of them

  double seconds(double each, double rate, double bytes) const {
    return count * each + share * bytes / rate;
  }
};

}  // namespace

ExchangeNetwork exchange_network(const Machine& machine, int nodes, int per_node) {
  const Link& within = machine.links.front();
  const Link& between = outer_link(machine, group_shape(machine, nodes * per_node, 1));
  return {.nodes = nodes,
          .per_node = per_node,
          .message_between = between.latency_s,
          .message_within = within.latency_s,
          .rate_between = between.bytes_per_s * between.collective,
          .rate_within = within.bytes_per_s * within.collective,
          .copy_rate = machine.device.memory_bytes_per_s};
}

double linear_exchange_seconds(const ExchangeNetwork& network, double bytes) {
  const double ranks = network.ranks(), here = network.per_node;
  const Messages between{.count = ranks - here, .share = 1.0 - here / ranks};
  const Messages within{.count = here - 1.0, .share = (here - 1.0) / ranks};
  return std::max(between.seconds(network.message_between, network.rate_between, bytes),
                  within.seconds(network.message_within, network.rate_within, bytes));
}

double two_level_exchange_seconds(const ExchangeNetwork& network, double bytes) {
  const double nodes = network.nodes, here = network.per_node;
  const Messages between{.count = nodes - 1.0, .share = 1.0 - 1.0 / nodes};
  const Messages within{.count = here - 1.0, .share = 1.0 - 1.0 / here};
  return between.seconds(network.message_between, network.rate_between, bytes) +
         within.seconds(network.message_within, network.rate_within, bytes) +
         kCopiedBytes * bytes / network.copy_rate;
}

std::optional<double> two_level_crossover(const ExchangeNetwork& network) {
  const auto is_faster = [&](double bytes) {
    return two_level_exchange_seconds(network, bytes) < linear_exchange_seconds(network, bytes);
  };
  if (!is_faster(0.0)) return std::nullopt;
  double low = 0.0, high = kMostExchanged;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (is_faster(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace heddle::planner
