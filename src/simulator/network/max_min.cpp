#include "simulator/network/max_min.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace heddle::network {

MaxMin::MaxMin(std::vector<double> capacities)
    : capacities_(std::move(capacities)), uses_(capacities_.size()) {}

void MaxMin::count(std::span<const std::span<const LinkShare>> flows) {
  for (const int link : used_) uses_[static_cast<std::size_t>(link)] = {};
  used_.clear();
  for (const auto& links : flows) {
    for (const auto& [link, share] : links) {
      Use& use = uses_[static_cast<std::size_t>(link)];
      if (use.flows == 0) used_.push_back(link);
      ++use.flows;
      use.shares += share;
    }
  }
  std::uint32_t total = 0;
  for (const int link : used_) {
    Use& use = uses_[static_cast<std::size_t>(link)];
    use.left = capacities_[static_cast<std::size_t>(link)];
    use.first = use.end = total;
    total += static_cast<std::uint32_t>(use.flows);
  }
  flows_by_link_.resize(total);
  for (std::uint32_t flow = 0; flow < flows.size(); ++flow) {
    for (const auto& [link, share] : flows[flow]) {
      flows_by_link_[uses_[static_cast<std::size_t>(link)].end++] = flow;
    }
  }
}

void MaxMin::solve(std::span<const std::span<const LinkShare>> flows, std::span<double> rates) {
  count(flows);
  std::fill(rates.begin(), rates.end(), 0.0);  // 0: not fixed yet
  const auto level_of = [this](int link) {
    const Use& use = uses_[static_cast<std::size_t>(link)];
    return use.left / use.shares;
  };
  // The level at which a link is full only rises while flows are fixed elsewhere, so an entry that
  // is out of date comes too early, and is put back.
  using Entry = std::pair<double, int>;
  std::vector<Entry> entries;
  entries.reserve(used_.size());
  for (const int link : used_) entries.emplace_back(level_of(link), link);
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> next(std::greater<>(),
                                                                      std::move(entries));
  double level = 0.0;
  while (!next.empty()) {
    const auto [known, link] = next.top();
    next.pop();
    const Use& full = uses_[static_cast<std::size_t>(link)];
    if (full.flows == 0) continue;
    const double now = level_of(link);
    if (now > known * (1.0 + 1e-12)) {
      next.emplace(now, link);
      continue;
    }
    level = std::max(level, known);  // rounding must not lower it, or leave a flow nothing
    for (std::uint32_t i = full.first; i < full.end; ++i) {
      const std::uint32_t flow = flows_by_link_[i];
      if (rates[flow] > 0.0) continue;
      rates[flow] = level;
      for (const auto& [other, share] : flows[flow]) {
        Use& use = uses_[static_cast<std::size_t>(other)];
        --use.flows;
        use.shares -= share;
        use.left -= level * share;
      }
    }
  }
}

}  // namespace heddle::network
