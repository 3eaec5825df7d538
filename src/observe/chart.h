#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/history.h"

namespace heddle::observe {

/// Text for an HTML page, safe as content and inside quoted attributes: markup characters are
/// escaped, invalid UTF-8 and control characters become U+FFFD.
std::string escape_html(std::string_view text);

/// Round numbers (1, 2 or 5 times a power of ten apart) inside [low, high], about `wanted` of them.
struct Ticks {
  double spacing = 1;
  std::vector<double> values;
};
Ticks nice_ticks(double low, double high, int wanted);

/// "0.25", "1,500", "20k", "3e-4": a tick's number with the digits its spacing needs.
std::string format_tick(double value, double spacing);

struct ChartSeries {
  std::string name;   ///< in the read-out; fixed text of ours, never from the user
  std::string style;  ///< CSS class of the stroke: "line", "raw", "dots", "second"
  Curve points;
};

/// A curve over steps. Strokes are SVG that stretches with the page, labels are HTML on top, so
/// that text keeps its size on a phone.
struct Chart {
  std::string id;
  std::string description;  ///< for people who do not see the picture
  int height = 200;         ///< in CSS pixels
  std::vector<ChartSeries> series;
  bool from_zero = false;
  std::optional<double> bound = {};  ///< a dashed line
  std::string bound_label = {};
};

std::string render_chart(const Chart& chart);
/// What the read-out under the pointer needs: {"id": {"x": [low, high], "series": [...]}, ...}.
std::string chart_data(const std::vector<Chart>& charts);

}  // namespace heddle::observe
