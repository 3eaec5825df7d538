#include "planner/placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace heddle::planner {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : key_(rng_key(seed, "placement")) {}
  double uniform() { return random_uniform(key_, next_++); }
  std::size_t below(std::size_t end) {
    return static_cast<std::size_t>(uniform() * static_cast<double>(end));
  }

 private:
  const std::uint64_t key_;
  std::uint64_t next_ = 0;
};

void move_one(std::vector<int>& order, Dice& dice) {
  const std::size_t from = dice.below(order.size()), to = dice.below(order.size());
  const auto at = [&](std::size_t i) { return order.begin() + static_cast<std::ptrdiff_t>(i); };
  if (from < to) std::rotate(at(from), at(from + 1), at(to + 1));
  if (to < from) std::rotate(at(to), at(from), at(from + 1));
}

void change(std::vector<int>& order, Dice& dice) {
  const std::size_t kind = dice.below(3);
  if (kind == 0) return move_one(order, dice);
  std::size_t a = dice.below(order.size()), b = dice.below(order.size());
  if (kind == 1) return std::swap(order[a], order[b]);
  if (a > b) std::swap(a, b);
  std::reverse(order.begin() + static_cast<std::ptrdiff_t>(a),
               order.begin() + static_cast<std::ptrdiff_t>(b + 1));
}

}  // namespace

double placement_seconds(const PlacementProblem& problem, std::span<const int> servers) {
  const auto link = [&](int a, int b) {
    return problem.bytes_per_s[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
  };
  const auto at = [&](int pipeline, int stage) {
    return servers[static_cast<std::size_t>(pipeline * problem.stages + stage)];
  };
  double slowest_pipeline = 0.0, slowest_link = 0.0;
  const int pipelines = problem.pipelines();
  for (int pipeline = 0; pipeline < pipelines; ++pipeline) {
    double way = 0.0;
    for (int stage = 0; stage + 1 < problem.stages; ++stage) {
      way += 2.0 * problem.message_bytes / link(at(pipeline, stage), at(pipeline, stage + 1));
    }
    slowest_pipeline = std::max(slowest_pipeline, way);
    if (pipelines == 1) continue;
    const int next = (pipeline + 1) % pipelines;
    slowest_link = std::max(slowest_link, 1.0 / link(at(pipeline, 0), at(next, 0)));
  }
  const double g = pipelines;
  return slowest_pipeline + 2.0 * (g - 1.0) / g * problem.gradient_bytes * slowest_link;
}

Placement anneal_placement(const PlacementProblem& problem, int steps, std::uint64_t seed) {
  HEDDLE_CHECK(problem.stages > 0 && problem.servers() % problem.stages == 0,
               "{} servers for pipelines of {}", problem.servers(), problem.stages);
  constexpr double kFirstTemperature = 0.1, kCooling = 0.999;
  Dice dice(seed);
  std::vector<int> order(static_cast<std::size_t>(problem.servers()));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[dice.below(i)]);
  double cost = placement_seconds(problem, order), temperature = kFirstTemperature * cost;
  Placement best{order, cost};
  std::vector<int> tried;
  for (int step = 0; step < steps; ++step, temperature *= kCooling) {
    tried = order;
    change(tried, dice);
    const double of_tried = placement_seconds(problem, tried);
    if (of_tried > cost && dice.uniform() >= std::exp((cost - of_tried) / temperature)) continue;
    order = tried;
    cost = of_tried;
    if (cost < best.seconds) best = {order, cost};
  }
  return best;
}

}  // namespace heddle::planner
