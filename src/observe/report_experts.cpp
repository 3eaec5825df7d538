#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/strings.h"
#include "observe/bars.h"
#include "observe/heatmap.h"
#include "observe/put.h"
#include "observe/report_parts.h"

namespace heddle::observe {
namespace {

constexpr std::size_t kColumns = 120;

std::string layer_name(const ExpertLoad& layer) { return fmt::format("layer {}", layer.layer); }

/// What is drawn of a layer over time.
struct LayerValue {
  std::string description;
  double middle = 0, most = 0;  ///< of the colours
  std::function<double(const ExpertLoad&)> of;
  std::function<std::string(double)> words, short_words;
};

/// Rows of layers, columns of time: of each stretch the step at which a layer was worst.
std::string over_time(const std::vector<ExpertLoadPoint>& points, const LayerValue& drawn) {
  Heatmap map{.description = drawn.description,
              .rows = {},
              .least = 0,
              .middle = drawn.middle,
              .most = drawn.most,
              .first = fmt::format("step {}", format_thousands(points.front().step)),
              .last = fmt::format("step {}", format_thousands(points.back().step))};
  const std::size_t columns = std::min(kColumns, points.size());
  for (std::size_t layer = 0; layer < points.back().layers.size(); ++layer) {
    Heatmap::Row row{.name = layer_name(points.back().layers[layer]), .cells = {}, .total = {}};
    for (std::size_t column = 0; column < columns; ++column) {
      Heatmap::Cell worst;
      const std::size_t end = points.size() * (column + 1) / columns;
      for (std::size_t i = points.size() * column / columns; i < end; ++i) {
        const double value = drawn.of(points[i].layers[layer]);
        if (value < worst.value) continue;
        worst = {value,
                 fmt::format("step {}: {}", format_thousands(points[i].step), drawn.words(value))};
      }
      row.cells.push_back(std::move(worst));
    }
    row.total = drawn.short_words(drawn.of(points.back().layers[layer]));
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

double dropped_share(const ExpertLoad& layer) {
  return static_cast<double>(layer.dropped) / std::max(1.0, static_cast<double>(layer.choices()));
}

std::string busiest_over_time(const std::vector<ExpertLoadPoint>& points) {
  return over_time(points,
                   {.description = "Load of the busiest expert of every layer over time",
                    .middle = 1,
                    .most = 3,
                    .of = [](const ExpertLoad& layer) { return layer.most_over_mean(); },
                    .words =
                        [](double value) {
                          return fmt::format("the busiest expert has {:.2f} times the mean", value);
                        },
                    .short_words = [](double value) { return fmt::format("{:.2f}", value); }});
}

/// Nothing where nothing ever was.
std::string dropped_over_time(const std::vector<ExpertLoadPoint>& points) {
  double most = 0.0;
  for (const ExpertLoadPoint& point : points) {
    for (const ExpertLoad& layer : point.layers) most = std::max(most, dropped_share(layer));
  }
  if (most == 0.0) return {};
  const std::string map =
      over_time(points, {.description = "Choices that every layer dropped, over time",
                         .middle = most / 2,
                         .most = most,
                         .of = dropped_share,
                         .words =
                             [](double value) {
                               return fmt::format("{} of the choices were dropped", percent(value));
                             },
                         .short_words = [](double value) { return percent(value); }});
  std::string html;
  put(html,
      "<h3>Dropped choices by layer, over time</h3><p class=\"say\">For want of room; orange is "
      "{}, the most. At the end of a row its last value.</p>{}",
      percent(most), map);
  return html;
}

std::string exchange_bars(const std::vector<ExpertExchangeRow>& exchanges) {
  if (exchanges.empty()) return {};
  StackedBars bars{.parts = {{"exposed", 'c'}, {"hidden", 'a'}}, .format = short_time};
  double exposed = 0.0, all = 0.0;
  for (const ExpertExchangeRow& row : exchanges) {
    exposed += row.exposed;
    all += row.exposed + row.hidden;
    bars.rows.push_back({.name = fmt::format("rank {}", row.rank),
                         .parts = {row.exposed, row.hidden},
                         .total = short_time(row.exposed + row.hidden)});
  }
  std::string html;
  put(html,
      "<h3>Exchanges of rows by rank</h3><p class=\"say\">How long they were under way in a step, "
      "one after the other: {} of that exposed, while the rank did nothing but wait, the rest "
      "hidden behind what it computed. Ranks that come late let others wait too.</p>{}",
      percent(all > 0 ? exposed / all : 0.0), render_bars(bars));
  return html;
}

}  // namespace

std::string experts_section(const std::vector<ExpertLoadPoint>& points,
                            const std::vector<ExpertExchangeRow>& exchanges) {
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
      busiest_over_time(points));
  put(html,
      "<h3>Load of every expert at step {}</h3><p class=\"say\">Over the mean of its layer: blue "
      "is less, orange more.</p>{}",
      format_thousands(points.back().step), by_expert(points.back()));
  return html + dropped_over_time(points) + exchange_bars(exchanges) + "</section>\n";
}

}  // namespace heddle::observe
