#include "simulator/play_local.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "simulator/play_sites.h"

namespace heddle {
namespace {

/// Steps times layers that play in a fraction of a second, with a hundred steps to settle.
constexpr double kMostLayerSteps = 1e7;

/// A third of a step is forward, layer by layer, two thirds backward in reverse order. A layer goes
/// when its backward ends; its next forward but `delay` waits for it.
SiteCourse course_of(const LocalMethod& method, const LocalLink& link) {
  const double unit = method.step_seconds / (3.0 * method.layers);
  SiteCourse course{.step_seconds = method.step_seconds, .window = method.every};
  for (int layer = method.layers - 1; layer >= 0; --layer) {
    const auto fragment = static_cast<std::int64_t>(layer % method.fragments);
    course.exchanges.push_back(
        {.turn = static_cast<int>(fragment * method.every / method.fragments),
         .begins_at = unit * (3 * method.layers - 2 * layer),
         .steps_under_way = method.delay + 1,
         .awaited_at = unit * layer,
         .link_seconds = method.layer_bits() / link.bits_per_second,
         .latency = link.latency});
  }
  return course;
}

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
  if (1.0 * method.layers * (method.every + 100.0) > kMostLayerSteps) {
    problems.push_back(
        fmt::format("{} layers over {} steps are too many to play; give fewer: what counts is the "
                    "share of a window that the exchanges take",
                    method.layers, method.every));
  }
  return problems;
}

PlayedLocal play_local(const LocalMethod& method, const LocalLink& link) {
  const PlayedSites played = play_sites(course_of(method, link));
  return {.step_seconds = played.step_seconds, .utilisation = played.utilisation};
}

}  // namespace heddle
