#include "observe/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/strings.h"

namespace heddle::observe {
namespace {

bool all_apart(const std::vector<double>& ticks, double closest) {
  for (std::size_t i = 1; i < ticks.size(); ++i) {
    if (ticks[i] - ticks[i - 1] < closest) return false;
  }
  return true;
}

/// How many decimals it takes to write `value / unit`.
int decimals(double value, double unit) {
  constexpr int kMost = 9;
  for (int digits = 0; digits < kMost; ++digits) {
    const double scaled = value / unit * std::pow(10.0, digits), written = std::round(scaled);
    if (std::abs(scaled - written) < 1e-4 && (written != 0 || value == 0)) return digits;
  }
  return kMost;
}

int most_decimals(const std::vector<double>& ticks, double unit) {
  int most = 0;
  for (const double tick : ticks) most = std::max(most, decimals(tick, unit));
  return most;
}

int exponent_of(double size) { return static_cast<int>(std::floor(std::log10(size) + 1e-9)); }

std::string scientific(double value, int exponent, int digits) {
  return fmt::format("{:.{}f}e{}", value / std::pow(10.0, exponent), digits, exponent);
}

/// Orders of magnitude: "0.01", "1", "100", or "2e-5", "1e-4" where that would be long.
std::string magnitude_label(double tick, double smallest, double largest) {
  if (smallest >= 1e-3 && largest < 1e6) {
    return tick >= 1 && decimals(tick, 1) == 0 ? format_thousands(std::llround(tick))
                                               : fmt::format("{:.{}f}", tick, decimals(tick, 1));
  }
  const int exponent = exponent_of(std::abs(tick));
  return scientific(tick, exponent, decimals(tick, std::pow(10.0, exponent)));
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int wanted) {
  std::vector<double> ticks;
  if (!(high > low) || !std::isfinite(high - low)) return ticks;
  const double rough = (high - low) / std::max(wanted, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double leading = rough / power;
  const double spacing = power * (leading < 1.5 ? 1 : leading < 3.5 ? 2 : leading < 7.5 ? 5 : 10);
  const double slack = 1e-9 * (high - low);
  for (double k = std::ceil((low - slack) / spacing); k * spacing <= high + slack; ++k) {
    ticks.push_back(k * spacing);
  }
  return ticks;
}

std::vector<double> log_ticks(double low, double high, double closest) {
  if (!(low > 0) || !(high > low) || !std::isfinite(high)) return {};
  const double span = std::log(high / low);
  std::vector<double> best;
  const auto consider = [&](const std::vector<double>& ticks) {
    std::vector<double> places;
    for (const double tick : ticks) places.push_back(std::log(tick / low) / span);
    if (ticks.size() > best.size() && all_apart(places, closest)) best = ticks;
  };
  const int first = exponent_of(low), last = exponent_of(high);
  // Several in each decade, or one in every few decades.
  using Leading = std::vector<double>;
  for (const Leading& leading : {Leading{1, 2, 5}, Leading{1, 1.5, 2, 3, 5, 7}, Leading{1, 3}}) {
    std::vector<double> ticks;
    for (int exponent = first; exponent <= last; ++exponent) {
      for (const double digit : leading) {
        const double tick = digit * std::pow(10.0, exponent);
        if (tick >= low && tick <= high) ticks.push_back(tick);
      }
    }
    consider(ticks);
  }
  for (const int every : {1, 2, 3, 5, 10, 20, 50, 100}) {
    std::vector<double> ticks;
    for (int exponent = first; exponent <= last; ++exponent) {
      const double tick = std::pow(10.0, exponent);
      if (exponent % every == 0 && tick >= low && tick <= high) ticks.push_back(tick);
    }
    consider(ticks);
  }
  // Less than a decade: the round numbers of a linear axis, further apart at its lower end.
  for (const int wanted : {2, 3, 4, 5, 6}) consider(nice_ticks(low, high, wanted));
  return best;
}

std::vector<std::string> tick_labels(const std::vector<double>& ticks) {
  double smallest = std::numeric_limits<double>::infinity(), largest = 0;
  for (const double tick : ticks) {
    if (tick != 0) smallest = std::min(smallest, std::abs(tick));
    largest = std::max(largest, std::abs(tick));
  }
  constexpr double kMagnitudes = 20;  // ticks of a linear axis lie nearer together
  const bool spans_magnitudes = largest > kMagnitudes * smallest;
  const int digits = most_decimals(ticks, 1);
  struct Unit {
    double size;
    int decimals;
    const char* suffix;
  };
  Unit unit{1, digits, ""};
  for (const Unit& larger : {Unit{1e9, 1, "B"}, {1e6, 1, "M"}, {1e3, 0, "k"}}) {
    const int needed = most_decimals(ticks, larger.size);
    if (largest >= std::max(larger.size, 1e4) && needed <= larger.decimals) {
      unit = {larger.size, needed, larger.suffix};
      break;
    }
  }
  const bool is_tiny = largest < 0.01 && digits > 3;
  const int exponent = largest > 0 ? exponent_of(largest) : 0;
  const int mantissa_digits = most_decimals(ticks, std::pow(10.0, exponent));
  std::vector<std::string> labels;
  for (const double tick : ticks) {
    if (tick == 0) {
      labels.emplace_back("0");
    } else if (spans_magnitudes) {
      labels.push_back(magnitude_label(tick, smallest, largest));
    } else if (is_tiny) {
      labels.push_back(scientific(tick, exponent, mantissa_digits));
    } else if (unit.size == 1 && digits == 0) {
      labels.push_back(format_thousands(std::llround(tick)));
    } else {
      labels.push_back(fmt::format("{:.{}f}{}", tick / unit.size, unit.decimals, unit.suffix));
    }
  }
  return labels;
}

}  // namespace heddle::observe
