#include "simulator/network/flow_network.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace heddle::network {
namespace {

/// Times that differ by less are equal but for rounding.
constexpr double kRounding = 1e-12;

std::vector<double> capacities_of(const Topology& topology) {
  std::vector<double> capacities;
  for (const Link& link : topology.links()) capacities.push_back(link.speed.bytes_per_second);
  return capacities;
}

}  // namespace

FlowNetwork::FlowNetwork(const Topology& topology, double tolerance)
    : FlowNetwork(capacities_of(topology), tolerance) {}

FlowNetwork::FlowNetwork(std::vector<double> capacities, double tolerance)
    : tolerance_(tolerance),
      capacities_(std::move(capacities)),
      users_(capacities_.size(), 0),
      max_min_(capacities_) {}

void FlowNetwork::begin(double time, Piece piece, std::size_t id) {
  const double begin = std::max(time, now_) + piece.latency_seconds;
  waiting_.push_back({.piece = std::move(piece), .id = id, .begin = begin});
  std::push_heap(waiting_.begin(), waiting_.end(), Later());
}

/// Whether anything is under way until `limit`.
bool FlowNetwork::admit(double limit) {
  if (active_.empty() && !waiting_.empty() && waiting_.front().begin <= limit) {
    now_ = std::max(now_, waiting_.front().begin);
  }
  while (!waiting_.empty() && waiting_.front().begin <= now_ * (1.0 + kRounding)) {
    std::pop_heap(waiting_.begin(), waiting_.end(), Later());
    enter(std::move(waiting_.back()));
    waiting_.pop_back();
  }
  return !active_.empty();
}

/// A piece that has its links for itself goes at their speed and slows nobody.
void FlowNetwork::enter(Active one) {
  one.rate = std::numeric_limits<double>::infinity();
  for (const auto& [link, share] : one.piece.links) {
    int& users = users_[static_cast<std::size_t>(link)];
    is_changed_ |= users++ > 0;
    one.rate = std::min(one.rate, capacities_[static_cast<std::size_t>(link)] / share);
  }
  one.end = now_ + one.piece.bytes / one.rate;
  active_.push_back(std::move(one));
}

void FlowNetwork::solve() {
  std::vector<std::span<const LinkShare>> flows;
  flows.reserve(active_.size());
  for (const Active& one : active_) flows.emplace_back(one.piece.links);
  std::vector<double> rates(active_.size());
  max_min_.solve(flows, rates);
  for (std::size_t i = 0; i < active_.size(); ++i) {
    active_[i].rate = rates[i];
    active_[i].end = now_ + active_[i].piece.bytes / rates[i];
  }
  is_changed_ = false;
  ++solves_;
}

void FlowNetwork::move_to(double time) {
  for (Active& one : active_) {
    const double bytes = std::min(one.piece.bytes, one.rate * (time - now_));
    one.piece.bytes -= bytes;
    bytes_moved_ += bytes;
  }
  now_ = time;
}

void FlowNetwork::end_batch(double first_end) {
  const auto first =
      std::find_if(active_.begin(), active_.end(), [&](auto& a) { return a.end == first_end; });
  const double horizon = first_end * (1.0 + kRounding) + tolerance_ * (first_end - first->begin);
  const auto rest = std::partition(active_.begin(), active_.end(),
                                   [&](const Active& one) { return one.end > horizon; });
  for (auto one = rest; one != active_.end(); ++one) {
    ended_.push_back({one->id, one->end});
    bytes_moved_ += one->piece.bytes;
    for (const auto& [link, share] : one->piece.links) {
      is_changed_ |= --users_[static_cast<std::size_t>(link)] > 0;
    }
  }
  active_.erase(rest, active_.end());
  std::sort(ended_.begin(), ended_.end(), [](const Ended& a, const Ended& b) {
    return std::pair(a.time, a.id) < std::pair(b.time, b.id);
  });
  move_to(ended_.back().time);
}

std::span<const Ended> FlowNetwork::advance(double limit) {
  ended_.clear();
  while (ended_.empty() && admit(limit)) {
    if (is_changed_) solve();
    double first_end = std::numeric_limits<double>::infinity();
    for (const Active& one : active_) first_end = std::min(first_end, one.end);
    const double next = waiting_.empty() ? first_end : std::min(first_end, waiting_.front().begin);
    if (next > limit) break;
    if (!waiting_.empty() && waiting_.front().begin < first_end) {
      move_to(waiting_.front().begin);
    } else {
      end_batch(first_end);
    }
  }
  return ended_;
}

}  // namespace heddle::network
