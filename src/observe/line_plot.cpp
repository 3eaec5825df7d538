#include "observe/line_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "observe/chart.h"
#include "observe/ticks.h"

namespace heddle::observe {
namespace {

constexpr double kPlotWidth = 760, kPlotHeight = 340;
constexpr double kLeftEdge = 48, kRightEdge = kPlotWidth - 24, kPlotTop = 64,
                 kPlotBottom = kPlotHeight - 46;
constexpr std::size_t kPlotColours = 6;
constexpr double kPlotLetter = 6.6;  // about the width of one

constexpr const char* kPlotStyle =
    "<style>svg{--ink:#1c1e21;--soft:#63676e;--hair:#e4e2dc;--c0:#24588f;--c1:#c4561b;--c2:#3f7d58;"
    "--c3:#a8862c;--c4:#7a4e9c;--c5:#8b9099;font:12px system-ui,sans-serif}"
    "@media (prefers-color-scheme:dark){svg{--ink:#e9e7e2;--soft:#9a9da3;--hair:#33373c;"
    "--c0:#7db2ec;--c1:#f0975c;--c2:#7cc096;--c3:#dcb95c;--c4:#b992d6;--c5:#70757d}}"
    "text{fill:var(--soft)}.k{fill:var(--ink)}.t{text-anchor:middle}.y{text-anchor:end}"
    ".h{stroke:var(--hair)}path{fill:none;stroke-width:2}</style>\n";

struct PlotScale {
  double low, high, from, to;
  double at(double value) const { return from + (to - from) * (value - low) / (high - low); }
};

std::pair<double, double> range_across(const LinePlot& plot) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const auto& line : plot.lines) {
    for (const auto& [x, y] : line.points) {
      low = std::min(low, x);
      high = std::max(high, x);
    }
  }
  if (!(low < high)) return {0.5 * (high > 0 ? high : 1), 2 * (high > 0 ? high : 1)};
  return {low, high};
}

}  // namespace

std::string render_line_plot(const LinePlot& plot) {
  const auto [first, last] = range_across(plot);
  const PlotScale across{std::log(first), std::log(last), kLeftEdge, kRightEdge};
  const PlotScale up{plot.low, plot.high, kPlotBottom, kPlotTop};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"{}\">\n{}<text class=\"k\" x=\"{:.0f}\" y=\"16\">{}</text>\n",
      kPlotWidth, kPlotHeight, escape_html(plot.title), kPlotStyle, kLeftEdge,
      escape_html(plot.title));
  const auto heights = nice_ticks(plot.low, plot.high, 5);
  const auto height_labels = tick_labels(heights);
  for (std::size_t i = 0; i < heights.size(); ++i) {
    const double y = up.at(heights[i]);
    svg += fmt::format(
        "<line class=\"h\" x1=\"{0:.0f}\" x2=\"{1:.0f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"y\" x=\"{3:.0f}\" y=\"{4:.1f}\">{5}</text>\n",
        kLeftEdge, kRightEdge, y, kLeftEdge - 6, y + 4, height_labels[i]);
  }
  const auto places = log_ticks(first, last, 0.06);
  const auto place_labels = tick_labels(places);
  for (std::size_t i = 0; i < places.size(); ++i) {
    svg += fmt::format("<text class=\"t\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>\n",
                       across.at(std::log(places[i])), kPlotBottom + 18, place_labels[i]);
  }
  double at = kLeftEdge;
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    const auto& line = plot.lines[i];
    const std::size_t colour = i % kPlotColours;
    svg += fmt::format(
        "<circle cx=\"{:.0f}\" cy=\"34\" r=\"4.5\" fill=\"var(--c{})\"/><text x=\"{:.0f}\" "
        "y=\"38\">{}</text>\n<path stroke=\"var(--c{})\" d=\"",
        at + 5, colour, at + 15, escape_html(line.name), colour);
    at += 34 + kPlotLetter * static_cast<double>(line.name.size());
    for (std::size_t point = 0; point < line.points.size(); ++point) {
      const auto& [x, y] = line.points[point];
      svg += fmt::format("{}{:.1f} {:.1f}", point == 0 ? "M" : "L", across.at(std::log(x)),
                         up.at(std::clamp(y, plot.low, plot.high)));
    }
    svg += "\"/>\n";
  }
  return svg + fmt::format(
                   "<text x=\"2\" y=\"{:.0f}\">{}</text><text class=\"t\" x=\"{:.0f}\" "
                   "y=\"{:.0f}\">{}</text></svg>\n",
                   kPlotTop - 8, escape_html(plot.up), (kLeftEdge + kRightEdge) / 2,
                   kPlotHeight - 8, escape_html(plot.across));
}

}  // namespace heddle::observe
