#include "simulator/play_local.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace heddle {
namespace {

/// Steps that are played before time counts, so that what is on the link is as in all later ones.
constexpr int kStepsToSettle = 100;
/// Steps times layers that play in a fraction of a second.
constexpr double kMostLayerSteps = 1e7;

class LocalPlayer {
 public:
  LocalPlayer(const LocalMethod& method, const LocalLink& link)
      : method_(method),
        latency_(link.latency),
        unit_(method.step_seconds / (3.0 * method.layers)),
        exchange_(method.layer_bits() / link.bits_per_second),
        rows_(static_cast<std::size_t>(method.delay) + 1) {
    for (auto& row : rows_) row.resize(static_cast<std::size_t>(method.layers));
  }

  PlayedLocal play() {
    const int windows = (kStepsToSettle + method_.every - 1) / method_.every;
    const int settled = windows * method_.every, end = 3 * settled;
    double begin = 0.0;
    for (int step = 0; step < end; ++step) {
      if (step == settled) begin = now_;
      play_step(step);
    }
    const double seconds = (now_ - begin) / (end - settled);
    return {.step_seconds = seconds, .utilisation = method_.step_seconds / seconds};
  }

 private:
  bool is_due(int layer, int step) const {
    const auto fragment = static_cast<std::int64_t>(layer % method_.fragments);
    const auto turn = static_cast<int>(fragment * method_.every / method_.fragments);
    return step >= turn && (step - turn) % method_.every == 0;
  }

  void play_step(int step) {
    // Its place in the ring is that of the step which this one waits for: `delay` + 1 before.
    auto& ends = rows_[static_cast<std::size_t>(step) % rows_.size()];
    for (const double end : ends) now_ = std::max(now_, end) + unit_;
    for (int layer = method_.layers - 1; layer >= 0; --layer) {
      now_ += 2.0 * unit_;
      double& end = ends[static_cast<std::size_t>(layer)];
      end = 0.0;
      if (!is_due(layer, step)) continue;
      link_free_ = std::max(link_free_, now_) + exchange_;
      end = link_free_ + latency_;
    }
  }

  const LocalMethod& method_;
  const double latency_, unit_, exchange_;
  double now_ = 0.0, link_free_ = 0.0;
  std::vector<std::vector<double>> rows_;  // by step, in a ring; by layer: when its exchange ends
};

}  // namespace

double LocalMethod::layer_bits() const {
  return 2.0 * (sites - 1) / sites * bits * parameters / layers;
}

double LocalMethod::bits_per_step() const { return layer_bits() * layers / every; }

double LocalMethod::largest_bits() const {
  return layer_bits() * ((layers + fragments - 1) / fragments);
}

std::vector<std::string> problems_of(const LocalMethod& method) {
  std::vector<std::string> problems;
  const auto at_least = [&](const char* name, double value, double least) {
    if (value >= least) return true;
    problems.push_back(fmt::format("{} = {} is too few; use {} or more", name, value, least));
    return false;
  };
  const auto positive = [&](const char* name, double value) {
    if (value > 0 && std::isfinite(value)) return;
    problems.push_back(fmt::format("{} = {} makes no sense; use a number above 0", name, value));
  };
  positive("parameters", method.parameters);
  positive("step time", method.step_seconds);
  positive("bits", method.bits);
  at_least("sites", method.sites, 2);
  const bool has_layers = at_least("layers", method.layers, 1);
  const bool has_window = at_least("every", method.every, 1);
  if (at_least("fragments", method.fragments, 1) && has_layers && has_window) {
    const int most = std::min(method.layers, method.every);
    if (method.fragments > most) {
      problems.push_back(fmt::format(
          "fragments = {} are more than {}; use at most {}: each has layers of its own "
          "and a step of its own in the window",
          method.fragments,
          method.layers < method.every ? "there are layers" : "a window has steps", most));
    }
  }
  if (at_least("delay", method.delay, 0) && has_window && method.delay >= method.every) {
    problems.push_back(
        fmt::format("delay = {} is not less than every = {}: the next exchange of a layer would "
                    "begin before the last is used; use at most {}",
                    method.delay, method.every, method.every - 1));
  }
  if (1.0 * method.layers * (method.every + 1.0 * kStepsToSettle) > kMostLayerSteps) {
    problems.push_back(
        fmt::format("{} layers over {} steps are too many to play; give fewer: what counts is the "
                    "share of a window that the exchanges take",
                    method.layers, method.every));
  }
  return problems;
}

PlayedLocal play_local(const LocalMethod& method, const LocalLink& link) {
  return LocalPlayer(method, link).play();
}

}  // namespace heddle
