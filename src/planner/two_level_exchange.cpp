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

/// What a rank has for others of one network.
struct Messages {
  double count = 0.0, share = 0.0;  ///< `share` of a rank's bytes is in all of them

  double sent(double each) const { return count * each; }
  double moved(double once, double rate, double bytes) const {
    return count > 0.0 ? once + share * bytes / rate : 0.0;
  }
};

}  // namespace

ExchangeNetwork exchange_network(const Machine& machine, int nodes, int per_node, int stride) {
  const Link& within = machine.links.front();
  const Link& between = outer_link(machine, group_shape(machine, nodes * per_node, stride));
  return {.nodes = nodes,
          .per_node = per_node,
          .message_between = between.is_direct ? between.message_s : between.latency_s,
          .message_within = within.is_direct ? within.message_s : within.latency_s,
          .latency_between = between.is_direct ? between.latency_s : 0.0,
          .latency_within = within.is_direct ? within.latency_s : 0.0,
          .rate_between = between.bytes_per_s * between.collective,
          .rate_within = within.bytes_per_s * within.collective,
          .copy_rate = machine.device.memory_bytes_per_s};
}

double linear_exchange_seconds(const ExchangeNetwork& network, double bytes) {
  const double ranks = network.ranks(), here = network.per_node;
  const Messages far{.count = ranks - here, .share = 1.0 - here / ranks};
  const Messages near{.count = here - 1.0, .share = (here - 1.0) / ranks};
  return far.sent(network.message_between) + near.sent(network.message_within) +
         std::max(far.moved(network.latency_between, network.rate_between, bytes),
                  near.moved(network.latency_within, network.rate_within, bytes));
}

double two_level_exchange_seconds(const ExchangeNetwork& network, double bytes) {
  const double nodes = network.nodes, here = network.per_node;
  const Messages far{.count = nodes - 1.0, .share = 1.0 - 1.0 / nodes};
  const Messages near{.count = here - 1.0, .share = 1.0 - 1.0 / here};
  return far.sent(network.message_between) + near.sent(network.message_within) +
         far.moved(network.latency_between, network.rate_between, bytes) +
         near.moved(network.latency_within, network.rate_within, bytes) +
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
