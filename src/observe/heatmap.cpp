#include "observe/heatmap.h"

#include <algorithm>
#include <cmath>

#include "observe/chart.h"
#include "observe/put.h"

namespace heddle::observe {
namespace {

constexpr double kCell = 10;  // of the stretched SVG's units, both ways

/// 0 at the middle, 1 at either end.
double strength(const Heatmap& map, double value) {
  const double end = value < map.middle ? map.least : map.most;
  const double share = end == map.middle ? 0.0 : (value - map.middle) / (end - map.middle);
  return std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0;
}

std::string cells(const Heatmap& map, const Heatmap::Row& row) {
  std::string svg;
  for (std::size_t i = 0; i < row.cells.size(); ++i) {
    const auto& [value, note] = row.cells[i];
    put(svg,
        "<rect class=\"{}\" x=\"{}\" width=\"{}\" height=\"{}\" "
        "fill-opacity=\"{:.3f}\"><title>{}</title></rect>",
        value < map.middle ? "less" : "more", kCell * static_cast<double>(i), kCell, kCell,
        strength(map, value), escape_html(note));
  }
  return svg;
}

}  // namespace

std::string render_heatmap(const Heatmap& map) {
  std::string html;
  put(html, "<div class=\"heat{}\" role=\"img\" aria-label=\"{}\">",
      map.rows.size() > 16 ? " many" : "", escape_html(map.description));
  for (const Heatmap::Row& row : map.rows) {
    put(html,
        "<div class=\"name\">{}</div><svg viewBox=\"0 0 {} {}\" "
        "preserveAspectRatio=\"none\">{}</svg><div class=\"total\">{}</div>",
        escape_html(row.name),
        kCell * static_cast<double>(std::max<std::size_t>(1, row.cells.size())), kCell,
        cells(map, row), escape_html(row.total));
  }
  put(html,
      "<div></div><div class=\"ends\"><span>{}</span><span>{}</span></div><div></div></div>\n",
      escape_html(map.first), escape_html(map.last));
  return html;
}

}  // namespace heddle::observe
