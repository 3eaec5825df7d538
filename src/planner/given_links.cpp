#include "planner/given_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace heddle::planner {
namespace {

/// What of a link's rate messages of training reach: headers are 3.5 %, and connections that share
/// a long link, or lose packets, do not fill it (benchmarks/results/wide-area-2026-11-16.md).
constexpr double kReached = 0.93, kReachedWithLoss = 0.85;

}  // namespace

int devices_inside(const Machine& machine) {
  const std::size_t tiers = machine.links.size();
  return tiers > 1 ? machine.links[tiers - 2].reach : std::numeric_limits<int>::max();
}

Machine with_links(Machine machine, const GivenLinks& given) {
  if (machine.links.size() == 1) {
    machine.links.push_back(machine.links.front());
    machine.links.front().reach = std::max(1, given.devices);
  } else if (given.devices > 0 && given.devices != devices_inside(machine)) {
    throw Error(ErrorCode::usage,
                fmt::format("devices={} share a link, but in {} {} devices do", given.devices,
                            machine.name, devices_inside(machine)),
                "leave devices out, or give a machine file of such servers");
  }
  Link& outer = machine.links.back();
  outer.name = given.text;
  outer.reach = 0;
  outer.bytes_per_s = given.bytes_per_s / devices_inside(machine);
  if (given.latency_s) outer.latency_s = *given.latency_s;
  outer.collective = outer.message = given.is_content   ? 1.0
                                     : given.loss > 0.0 ? kReachedWithLoss
                                                        : kReached;
  if (given.exchange_bytes_per_s) {
    outer.collective = std::min(1.0, *given.exchange_bytes_per_s / given.bytes_per_s);
  }
  outer.crowded = outer.gather = 1.0;
  machine.pairs.clear();  // of other links
  return machine;
}

}  // namespace heddle::planner
