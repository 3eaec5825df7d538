#include "nn/experts/exchange_choice.h"

#include <algorithm>
#include <cmath>

namespace heddle {
namespace {

constexpr std::int64_t kKeyRows = 128;
constexpr int kDegrees[] = {1, 2, 4, 8};

}  // namespace

ExchangeChoice::ExchangeChoice(const ExchangeRequest& request, int etp, int ep)
    : plans_(request.takes_turns() ? turns_of(etp, request.plan(etp).node)
                                   : std::vector{request.plan(etp)}),
      learns_(request.learns()),
      etp_(etp),
      ep_(ep) {}

ExchangePlan ExchangeChoice::next(std::int64_t capacity) {
  if (!learns_) return plans_[turn_++ % plans_.size()];
  const std::int64_t key = capacity / kKeyRows;
  const Found found = search(times_[key]);
  trial_.reset();
  if (found.untried) trial_ = {key, *found.untried};
  return found.untried ? *found.untried : *found.best;
}

void ExchangeChoice::took(double seconds) {
  constexpr double kMost = 2e9;
  microseconds_ = static_cast<std::int32_t>(std::clamp(std::ceil(seconds * 1e6), 1.0, kMost));
}

void ExchangeChoice::learn(std::int32_t slowest) {
  if (!trial_) return;
  times_[trial_->key].emplace_back(trial_->plan, slowest);
  trial_.reset();
}

/// The search runs anew on what is known, and stops where it wants to know more: so it has no state
/// of its own that ranks could disagree on.
ExchangeChoice::Found ExchangeChoice::search(const Times& times) const {
  Found found;
  std::int32_t least = 0;
  const auto time_of = [&](const ExchangePlan& plan) -> std::optional<std::int32_t> {
    const auto known = std::ranges::find(times, plan, &Times::value_type::first);
    if (known == times.end()) {
      found.untried = plan;
      return {};
    }
    if (!found.best || known->second < least) {
      found.best = plan;
      least = known->second;
    }
    return known->second;
  };
  // r = 1 up to the largest below etp by ternary search; 0 and etp always.
  std::vector<int> between = divisors_of(etp_);
  between.pop_back();
  std::vector<int> nodes = {1};
  if (const int node = usual().node; node > 1 && node < ep_) nodes.push_back(node);
  for (const int node : nodes) {
    for (const int degree : kDegrees) {
      const auto with = [&](int r) {
        return ExchangePlan{.r = r,
                            .degree_forward = degree,
                            .degree_backward = degree,
                            .node = node,
                            .networks = usual().networks,
                            .sends_again = r > 0 && usual().sends_again};
      };
      if (!time_of(with(etp_))) return found;
      if (degree == 1 && node == 1 && !time_of(with(0))) return found;  // nothing else exchanges
      std::size_t begin = 0, end = between.size();
      while (end - begin > 2) {
        const std::size_t third = (end - begin) / 3, low = begin + third, high = end - 1 - third;
        const auto at_low = time_of(with(between[low]));
        if (!at_low) return found;
        const auto at_high = time_of(with(between[high]));
        if (!at_high) return found;
        (*at_low < *at_high ? end : begin) = *at_low < *at_high ? high : low + 1;
      }
      for (; begin < end; ++begin) {
        if (!time_of(with(between[begin]))) return found;
      }
    }
  }
  return found;
}

std::map<std::int64_t, ExchangePlan> ExchangeChoice::dictionary() const {
  std::map<std::int64_t, ExchangePlan> all;
  for (const auto& [key, times] : times_) {
    const Found found = search(times);
    if (!found.untried) all[key] = *found.best;
  }
  return all;
}

std::size_t ExchangeChoice::most_trials() const {
  const auto divisors = static_cast<double>(divisors_of(etp_).size());
  const double steps = 2.0 * std::ceil(std::log(std::max(1.0, divisors)) / std::log(1.5));
  return static_cast<std::size_t>((steps + 2.0) * 2.0 * std::size(kDegrees)) + 1;
}

}  // namespace heddle
