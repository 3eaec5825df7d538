#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/history.h"

namespace heddle::observe {

/// Text for an HTML page, safe as content and inside quoted attributes: markup characters are
/// escaped, invalid UTF-8 and control characters become U+FFFD.
std::string escape_html(std::string_view text);
/// JSON in a form that may stand in a script element: nothing in it looks like its end.
std::string in_script(std::string_view json);

/// The coordinates of a stretched SVG go so far, both ways.
inline constexpr double kSvgUnits = 1000;

struct ChartSeries {
  std::string name;   ///< in the read-out
  std::string style;  ///< CSS class of the stroke: "line", "raw", "dots", "second"
  Curve points;
};

/// Something that happened at a step: a thin line across the chart.
struct ChartMark {
  std::int64_t step = 0;
  std::string label;  ///< short, at the line where there is room; escaped, as the next
  std::string note;   ///< all of it, when pointed at
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
  std::vector<ChartMark> marks = {};  ///< ascending in steps
  /// Drawn with a logarithmic axis too, where there are positive values; axis_switch says which of
  /// the two is seen.
  bool has_log_axis = false;
};

/// Lets the reader choose the axis of the charts that follow it in the same parent. Works without
/// scripts, and by keyboard.
std::string axis_switch(bool starts_logarithmic);

std::string render_chart(const Chart& chart);
/// What the read-out under the pointer needs: {"id": {"x": [low, high], "series": [...]}, ...}.
std::string chart_data(const std::vector<Chart>& charts);

}  // namespace heddle::observe
