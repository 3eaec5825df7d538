#include "planner/calibrate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "planner/evaluate.h"

namespace heddle::planner {
namespace {

struct Knob {
  const char* name;
  double unit;  ///< of the file, in ours
  double most;  ///< in our unit
  std::function<double&(Machine&)> of;
};

const std::vector<Knob>& knobs() {
  static const std::vector<Knob> all = {
      {"device.gemm.efficiency", 1, 1,
       [](Machine& m) -> double& { return m.device.gemm.efficiency; }},
      {"device.host_us", 1e-6, 1e-3, [](Machine& m) -> double& { return m.device.host_s; }},
      {"software.step_ms", 1e-3, 1, [](Machine& m) -> double& { return m.software.step_s; }},
      {"link.collective", 1, 1, [](Machine& m) -> double& { return m.links.back().collective; }},
      {"link.crowded", 1, 1, [](Machine& m) -> double& { return m.links.back().crowded; }},
      {"link.gather", 1, 1, [](Machine& m) -> double& { return m.links.back().gather; }},
  };
  return all;
}

using Point = std::vector<double>;

/// The method of Nelder and Mead with the usual coefficients, from a simplex of edges `edge`.
Point minimise(const std::function<double(const Point&)>& cost, const Point& start, double edge,
               int steps) {
  const std::size_t n = start.size();
  std::vector<Point> points(n + 1, start);
  for (std::size_t i = 0; i < n; ++i) points[i + 1][i] += edge;
  std::vector<double> costs;
  for (const Point& point : points) costs.push_back(cost(point));
  std::vector<std::size_t> order(n + 1);
  for (int step = 0; step < steps; ++step) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return costs[a] < costs[b]; });
    const std::size_t worst = order.back();
    Point centre(n, 0.0);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < n; ++k) centre[k] += points[order[i]][k] / static_cast<double>(n);
    }
    const auto along = [&](double way) {
      Point point(n);
      for (std::size_t k = 0; k < n; ++k)
        point[k] = centre[k] + way * (points[worst][k] - centre[k]);
      return point;
    };
    const auto take = [&](Point point, double value) {
      points[worst] = std::move(point);
      costs[worst] = value;
    };
    const Point mirrored = along(-1.0);
    const double of_mirrored = cost(mirrored);
    if (of_mirrored < costs[order.front()]) {
      const Point further = along(-2.0);
      const double of_further = cost(further);
      of_further < of_mirrored ? take(further, of_further) : take(mirrored, of_mirrored);
    } else if (of_mirrored < costs[order[n - 1]]) {
      take(mirrored, of_mirrored);
    } else {
      const Point nearer = along(of_mirrored < costs[worst] ? -0.5 : 0.5);
      const double of_nearer = cost(nearer);
      if (of_nearer < std::min(costs[worst], of_mirrored)) {
        take(nearer, of_nearer);
      } else {
        for (std::size_t i = 1; i <= n; ++i) {
          Point& point = points[order[i]];
          for (std::size_t k = 0; k < n; ++k) point[k] = 0.5 * (point[k] + points[order[0]][k]);
          costs[order[i]] = cost(point);
        }
      }
    }
  }
  return points[static_cast<std::size_t>(std::min_element(costs.begin(), costs.end()) -
                                         costs.begin())];
}

Machine with(const Machine& machine, const Point& logarithms) {
  Machine changed = machine;
  for (std::size_t i = 0; i < logarithms.size(); ++i) {
    const Knob& knob = knobs()[i];
    knob.of(changed) = std::min(knob.most, std::exp(logarithms[i]));
  }
  return changed;
}

}  // namespace

Calibration calibrate(const Machine& machine, const std::vector<std::vector<MeasuredRow>>& tables) {
  struct Weighted {
    const MeasuredRow* row;
    double weight;
  };
  Calibration result{.machine = machine, .constants = {}, .rows = 0};
  std::vector<Weighted> used;
  for (const auto& table : tables) {
    const auto rows = std::count_if(table.begin(), table.end(),
                                    [](const MeasuredRow& row) { return row.is_for_calibration; });
    for (const MeasuredRow& row : table) {
      if (row.is_for_calibration) used.push_back({&row, 1.0 / static_cast<double>(rows)});
    }
  }
  result.rows = static_cast<int>(used.size());
  Point start;
  for (const Knob& knob : knobs()) {
    start.push_back(std::log(std::max(1e-9, knob.of(result.machine))));
  }
  const auto cost = [&](const Point& point) {
    const Machine tried = with(machine, point);
    double sum = 0.0;
    for (const auto& [row, weight] : used) {
      const double error = std::abs(std::log(predict(tried, *row).total / row->seconds));
      sum += weight * (std::min(error, 0.4) + 0.3 * error * error);
    }
    // Where rows do not decide, stay: a hundredth of a percent for a factor of e.
    double moved = 0.0;
    for (std::size_t i = 0; i < point.size(); ++i) {
      moved += (point[i] - start[i]) * (point[i] - start[i]);
    }
    return sum + 1e-4 * moved;
  };
  Point best = start;
  if (!used.empty()) {
    for (const double edge : {0.3, -0.25, 0.1}) best = minimise(cost, best, edge, 200);
  }
  result.machine = with(machine, best);
  for (const Knob& knob : knobs()) {
    result.constants.push_back({knob.name, knob.of(result.machine) / knob.unit});
  }
  return result;
}

}  // namespace heddle::planner
