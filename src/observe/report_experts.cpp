#include <fmt/format.h>

#include <algorithm>

#include "base/strings.h"
#include "observe/heatmap.h"
#include "observe/put.h"
#include "observe/report_parts.h"

namespace heddle::observe {
namespace {

constexpr std::size_t kColumns = 120;

std::string layer_name(const ExpertLoad& layer) { return fmt::format("layer {}", layer.layer); }

/// Rows of layers, columns of time: of each stretch the step at which a layer was worst.
std::string over_time(const std::vector<ExpertLoadPoint>& points) {
  Heatmap map{.description = "Load of the busiest expert of every layer over time",
              .rows = {},
              .least = 0,
              .middle = 1,
              .most = 3,
              .first = fmt::format("step {}", format_thousands(points.front().step)),
              .last = fmt::format("step {}", format_thousands(points.back().step))};
  const std::size_t columns = std::min(kColumns, points.size());
  for (std::size_t layer = 0; layer < points.back().layers.size(); ++layer) {
    Heatmap::Row row{.name = layer_name(points.back().layers[layer]), .cells = {}, .total = {}};
    for (std::size_t column = 0; column < columns; ++column) {
      Heatmap::Cell worst;
      const std::size_t end = points.size() * (column + 1) / columns;
      for (std::size_t i = points.size() * column / columns; i < end; ++i) {
        const double value = points[i].layers[layer].most_over_mean();
        if (value < worst.value) continue;
        worst = {value, fmt::format("step {}: the busiest expert has {:.2f} times the mean",
                                    format_thousands(points[i].step), value)};
      }
      row.cells.push_back(std::move(worst));
    }
    row.total = fmt::format("{:.2f}", points.back().layers[layer].most_over_mean());
    map.rows.push_back(std::move(row));
  }
  return render_heatmap(map);
}

/// Rows of layers, columns of experts.
std::string by_expert(const ExpertLoadPoint& point) {
  const std::size_t experts = point.layers.front().counts.size();
  Heatmap map{.description = "Load of every expert at the last step that was recorded",
              .rows = {},
              .least = 0,
              .middle = 1,
              .most = 3,
              .first = "expert 0",
              .last = fmt::format("expert {}", experts - 1)};
  for (const ExpertLoad& layer : point.layers) {
    const double mean = std::max(1.0, static_cast<double>(layer.choices())) /
                        static_cast<double>(layer.counts.size());
    Heatmap::Row row{.name = layer_name(layer), .cells = {}, .total = {}};
    for (std::size_t e = 0; e < layer.counts.size(); ++e) {
      const double share = static_cast<double>(layer.counts[e]) / mean;
      row.cells.push_back({share, fmt::format("expert {}: {} choices, {:.2f} times the mean", e,
                                              format_thousands(layer.counts[e]), share)});
    }
    const auto unused = std::count(layer.counts.begin(), layer.counts.end(), 0);
    if (unused > 0) row.total = fmt::format("{} unused", unused);
    map.rows.push_back(std::move(row));
  }
  return render_heatmap(map);
}

std::string dropped_words(const ExpertLoadPoint& point) {
  std::int64_t choices = 0, dropped = 0, lost = 0;
  for (const ExpertLoad& layer : point.layers) {
    choices += layer.choices();
    dropped += layer.dropped;
    lost += layer.lost_tokens;
  }
  if (dropped == 0) return " Nothing was dropped.";
  return fmt::format(
      " Of the choices of that step {} were dropped for want of room; tokens passed {} layers "
      "without any expert.",
      percent(static_cast<double>(dropped) / static_cast<double>(choices)), format_thousands(lost));
}

}  // namespace

std::string experts_section(const std::vector<ExpertLoadPoint>& points) {
  if (points.empty() || points.back().layers.empty()) return {};
  double worst = 0.0;
  for (const ExpertLoad& layer : points.back().layers) {
    worst = std::max(worst, layer.most_over_mean());
  }
  std::string html = "<section id=\"experts\"><h2>Experts</h2>";
  put(html,
      "<p class=\"say\">How evenly routers use the experts of a layer. At step {} the busiest "
      "expert of all layers was chosen <b>{:.2f} times</b> as often as the mean of its "
      "layer.{}</p>",
      format_thousands(points.back().step), worst, dropped_words(points.back()));
  put(html,
      "<h3>Load of the busiest expert by layer, over time</h3><p class=\"say\">Over the mean: 1 is "
      "balance, orange from 3 on. At the end of a row its last value.</p>{}",
      over_time(points));
  put(html,
      "<h3>Load of every expert at step {}</h3><p class=\"say\">Over the mean of its layer: blue "
      "is less, orange more.</p>{}",
      format_thousands(points.back().step), by_expert(points.back()));
  return html + "</section>\n";
}

}  // namespace heddle::observe
