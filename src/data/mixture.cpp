#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/error.h"

namespace heddle {
namespace {

constexpr std::int64_t kLongestPeriod = 1'000'000;

std::vector<double> normalised(std::span<const double> weights) {
  double sum = 0;
  for (std::size_t s = 0; s < weights.size(); ++s) {
    if (!std::isfinite(weights[s]) || weights[s] <= 0) {
      throw Error(
          ErrorCode::usage,
          fmt::format("weight {} of data source {} is not a positive number", weights[s], s + 1),
          "give every source a weight above 0, or leave the source out");
    }
    sum += weights[s];
  }
  std::vector<double> shares(weights.begin(), weights.end());
  for (double& share : shares) share /= sum;
  for (std::size_t s = 0; s < shares.size(); ++s) {
    if (shares[s] * static_cast<double>(kLongestPeriod) < 0.5) {
      throw Error(ErrorCode::usage,
                  fmt::format("weight {} of data source {} is less than a millionth of all weights",
                              weights[s], s + 1),
                  "raise it, or leave the source out");
    }
  }
  return shares;
}

/// Whole numbers in the ratio of `shares` with sum `period`, when they exist.
bool exact_shares(const std::vector<double>& shares, std::int64_t period,
                  std::vector<std::int64_t>& out) {
  for (std::size_t s = 0; s < shares.size(); ++s) {
    const double scaled = shares[s] * static_cast<double>(period);
    const double rounded = std::round(scaled);
    if (rounded < 1 || std::abs(scaled - rounded) > 1e-12 * static_cast<double>(period))
      return false;
    out[s] = static_cast<std::int64_t>(rounded);
  }
  return std::accumulate(out.begin(), out.end(), std::int64_t{0}) == period;
}

/// Nearest whole numbers with sum kLongestPeriod and at least one for everybody: each unit that is
/// missing or too many goes where it lessens the error most.
std::vector<std::int64_t> rounded_shares(const std::vector<double>& shares) {
  std::vector<std::int64_t> out;
  for (const double share : shares) {
    out.push_back(
        std::max<std::int64_t>(1, std::llround(share * static_cast<double>(kLongestPeriod))));
  }
  const auto owed = [&](std::size_t s) {
    return shares[s] * static_cast<double>(kLongestPeriod) - static_cast<double>(out[s]);
  };
  while (true) {
    const std::int64_t missing =
        kLongestPeriod - std::accumulate(out.begin(), out.end(), std::int64_t{0});
    if (missing == 0) return out;
    const std::int64_t unit = missing > 0 ? 1 : -1;
    std::size_t best = shares.size();
    for (std::size_t s = 0; s < shares.size(); ++s) {
      if (out[s] + unit < 1) continue;
      if (best == shares.size() || static_cast<double>(unit) * (owed(s) - owed(best)) > 0) best = s;
    }
    out[best] += unit;
  }
}

std::vector<std::int64_t> whole_shares(const std::vector<double>& shares) {
  std::vector<std::int64_t> out(shares.size());
  for (std::int64_t period = 1; period <= kLongestPeriod; ++period) {
    if (exact_shares(shares, period, out)) return out;
  }
  return rounded_shares(shares);
}

}  // namespace

Mixture::Mixture(std::span<const double> weights) {
  if (weights.empty()) {
    throw Error(ErrorCode::usage, "no data source is given", "name at least one token file");
  }
  shares_ = whole_shares(normalised(weights));
  const auto sources = static_cast<std::int64_t>(shares_.size());
  const std::int64_t period = std::accumulate(shares_.begin(), shares_.end(), std::int64_t{0});
  const std::int64_t bound = std::max<std::int64_t>(1, 2 * sources - 2);
  std::vector<std::int64_t> given(shares_.size(), 0);
  table_.reserve(static_cast<std::size_t>(period));
  for (std::int64_t n = 1; n <= period; ++n) {
    // Among the sources that have fallen behind by at least 1/bound, the one that must come first
    // to stay within 1 - 1/bound. Numerators are exact in a double: below 2 * sources * 10^12.
    std::size_t chosen = shares_.size();
    double earliest = std::numeric_limits<double>::infinity();
    for (std::size_t s = 0; s < shares_.size(); ++s) {
      const std::int64_t behind = n * shares_[s] - given[s] * period;  // times the period
      if (behind * bound < period) continue;
      const double deadline = static_cast<double>((bound - 1) * period - bound * behind) /
                              static_cast<double>(shares_[s]);
      if (deadline < earliest) {
        earliest = deadline;
        chosen = s;
      }
    }
    HEDDLE_CHECK(chosen < shares_.size(), "no source is due at {} of {}", n, period);
    table_.push_back({.source = static_cast<std::int32_t>(chosen),
                      .index = static_cast<std::int32_t>(given[chosen]++)});
  }
  HEDDLE_CHECK(given == shares_, "a period of {} samples does not meet the weights", period);
}

Mixture::Pick Mixture::pick(std::int64_t sample) const {
  HEDDLE_CHECK(sample >= 0, "sample {}", sample);
  const Entry& entry = table_[static_cast<std::size_t>(sample % period())];
  const std::int64_t share = shares_[static_cast<std::size_t>(entry.source)];
  return {.source = entry.source, .index = sample / period() * share + entry.index};
}

std::vector<std::int64_t> Mixture::counts(std::int64_t samples) const {
  HEDDLE_CHECK(samples >= 0, "{} samples", samples);
  std::vector<std::int64_t> out;
  for (const std::int64_t share : shares_) out.push_back(samples / period() * share);
  for (std::int64_t i = 0; i < samples % period(); ++i) {
    ++out[static_cast<std::size_t>(table_[static_cast<std::size_t>(i)].source)];
  }
  return out;
}

std::vector<double> Mixture::weights() const {
  std::vector<double> out;
  for (const std::int64_t share : shares_) {
    out.push_back(static_cast<double>(share) / static_cast<double>(period()));
  }
  return out;
}

}  // namespace heddle
