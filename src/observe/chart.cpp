#include "observe/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/json.h"
#include "base/strings.h"
#include "observe/put.h"
#include "observe/report.h"
#include "observe/ticks.h"

namespace heddle::observe {
namespace {

struct Range {
  double low = 0, high = 1;
  bool is_log = false;
  /// 0 at low, 1 at high.
  double place(double value) const {
    if (!is_log) return (value - low) / (high - low);
    if (value <= 0) return -std::numeric_limits<double>::infinity();
    return std::log(value / low) / std::log(high / low);
  }
};

Range step_range(const Chart& chart) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const auto& series : chart.series) {
    for (const auto& point : series.points) {
      low = std::min(low, static_cast<double>(point.step));
      high = std::max(high, static_cast<double>(point.step));
    }
  }
  if (!(low <= high)) return {0, 1};
  if (low <= 1 + 0.05 * (high - low)) low = 0;  // a run that starts at its beginning shows zero
  return {low, std::max(high, low + 1)};
}

struct ValueRange {
  Range range;
  std::optional<double> cut_peak = {};  ///< the largest value, when it lies above the range
};

constexpr double kMargin = 0.06;           // above and below the values
constexpr double kRoomForBoundLabel = 30;  // pixels below the bound

std::vector<double> sorted_values(const Chart& chart, double above) {
  std::vector<double> values;
  for (const auto& series : chart.series) {
    for (const auto& point : series.points) {
      if (std::isfinite(point.value) && point.value > above) values.push_back(point.value);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

// The range of the values, except that a few extreme peaks may run out of view: one gradient spike
// must not press the rest of the curve into a flat line.
ValueRange linear_range(const Chart& chart) {
  const auto values = sorted_values(chart, -std::numeric_limits<double>::infinity());
  if (values.empty()) return {};
  double low = values.front(), high = values.back();
  std::optional<double> cut;
  const double usual = values[(values.size() - 1) * 99 / 100];
  const double base = chart.from_zero ? std::min(low, 0.0) : low;
  if (high > usual + 2 * (usual - base) && usual > base) {
    cut = high;
    high = usual + 0.5 * (usual - base);
  }
  if (chart.bound) {
    low = std::min(low, *chart.bound);
    high = std::max(high, *chart.bound);
  }
  if (chart.from_zero) low = std::min(low, 0.0);
  const double margin = high > low ? kMargin * (high - low) : std::max(std::abs(high) * 0.1, 1e-9);
  const double foot = chart.from_zero && low == 0 ? 0 : low - margin;
  Range range{foot, high + margin};
  if (chart.bound) {
    const double room = kRoomForBoundLabel / chart.height * (range.high - range.low);
    range.low = std::min(range.low, *chart.bound - room);
  }
  return {range, cut};
}

// A logarithmic axis shows peaks as well as the rest. Needs positive values.
ValueRange log_range(const Chart& chart) {
  const auto values = sorted_values(chart, 0);
  double low = std::log(values.front()), high = std::log(values.back());
  const bool has_bound = chart.bound && *chart.bound > 0;
  if (has_bound) {
    low = std::min(low, std::log(*chart.bound));
    high = std::max(high, std::log(*chart.bound));
  }
  const double margin = high > low ? kMargin * (high - low) : 0.1;
  low -= margin, high += margin;
  if (has_bound) {
    low = std::min(low, std::log(*chart.bound) - kRoomForBoundLabel / chart.height * (high - low));
  }
  return {{std::exp(low), std::exp(high), true}};
}

std::string path_data(const ChartSeries& series, const Range& steps, const Range& values) {
  std::string path;
  bool pen_down = false;
  for (const auto& point : downsample(series.points, kReportPoints)) {
    if (!std::isfinite(point.value)) {
      pen_down = false;
      continue;
    }
    const double x = kSvgUnits * steps.place(static_cast<double>(point.step));
    // Far outside is cut off anyway; bounded, because some renderers fail on huge coordinates.
    const double y = kSvgUnits * std::clamp(1 - values.place(point.value), -1.0, 2.0);
    const bool is_dot = series.style == "dots";
    fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", pen_down && !is_dot ? "L" : "M", x,
                   y);
    // A point of its own is a stroke without length, which its round cap makes visible.
    if (is_dot || !pen_down) path += "h0";
    pen_down = true;
  }
  return path;
}

std::string grid(const Range& values, const std::vector<double>& ticks) {
  std::string path;
  for (const double tick : ticks) {
    put(path, "M0 {:.1f}H{}", kSvgUnits * (1 - values.place(tick)), kSvgUnits);
  }
  return fmt::format("<path class=\"grid\" d=\"{}\"/>", path);
}

std::vector<double> value_ticks(const Chart& chart, const Range& values) {
  constexpr double kClosest = 34;  // pixels between the labels of a logarithmic axis
  return values.is_log ? log_ticks(values.low, values.high, kClosest / chart.height)
                       : nice_ticks(values.low, values.high, chart.height > 250 ? 6 : 3);
}

// The curves with their values' axis: what one position of the switch shows.
std::string drawing(const Chart& chart, const Range& steps, const ValueRange& values) {
  const Range& range = values.range;
  const std::vector<double> ticks = value_ticks(chart, range);
  std::string html;
  put(html,
      "<div class=\"drawing {}\"><svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" "
      "aria-hidden=\"true\">{}",
      range.is_log ? "on-log" : "on-linear", kSvgUnits, kSvgUnits, grid(range, ticks));
  for (const auto& series : chart.series) {
    const auto is_finite = [](const CurvePoint& point) { return std::isfinite(point.value); };
    const auto& points = series.points;
    const bool is_lone = std::count_if(points.begin(), points.end(), is_finite) == 1;
    put(html, "<path class=\"{}{}\" d=\"{}\"/>", series.style, is_lone ? " lone" : "",
        path_data(series, steps, range));
  }
  const bool has_bound = chart.bound && (!range.is_log || *chart.bound > 0);
  const double bound_top = has_bound ? 1 - range.place(*chart.bound) : 0;
  if (has_bound) {
    put(html, "<path class=\"bound\" d=\"M0 {:.1f}H{}\"/>", kSvgUnits * bound_top, kSvgUnits);
  }
  html += "</svg>";
  const auto labels = tick_labels(ticks);
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    put(html, "<span class=\"ty\" style=\"top:{:.2f}%\">{}</span>",
        100 * (1 - range.place(ticks[i])), labels[i]);
  }
  if (has_bound) {
    put(html, "<span class=\"bound-label\" style=\"top:{:.2f}%\">{}</span>", 100 * bound_top,
        escape_html(chart.bound_label));
  }
  if (values.cut_peak) {
    put(html, "<small class=\"cut\">Peaks up to {:.4g} run out of view.</small>", *values.cut_peak);
  }
  return html + "</div>";
}

std::string step_labels(const Range& steps, int wanted) {
  std::vector<double> ticks = nice_ticks(steps.low, steps.high, wanted);
  std::erase_if(ticks, [](double tick) { return tick != std::floor(tick); });
  const auto labels = tick_labels(ticks);
  std::string html;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    // In a narrow window every other one would touch its neighbours.
    put(html, "<span class=\"tx{}{}\" style=\"left:{:.2f}%\">{}</span>",
        steps.place(ticks[i]) > 0.97 ? " end" : "", i % 2 == 1 ? " odd" : "",
        100 * steps.place(ticks[i]), labels[i]);
  }
  return html;
}

// A mark says what it is where there is room for that before the next one and the chart's end, in a
// chart that is high enough for its curve to leave some.
std::string mark_lines(const Chart& chart, const Range& steps) {
  constexpr double kRoom = 0.16;  // of the width, for a label
  constexpr int kHighEnough = 250;
  constexpr std::size_t kMany = 10;  // that would hide the curve
  std::string html;
  for (std::size_t i = 0; i < chart.marks.size(); ++i) {
    const ChartMark& mark = chart.marks[i];
    const double place = steps.place(static_cast<double>(mark.step));
    if (place < 0 || place > 1) continue;
    put(html, "<i class=\"mark{}\" style=\"left:{:.2f}%\" title=\"{}\"></i>",
        chart.marks.size() > kMany ? " faint" : "", 100 * place, escape_html(mark.note));
    const bool has_next = i + 1 < chart.marks.size();
    const double free_until =
        has_next ? std::min(1.0, steps.place(static_cast<double>(chart.marks[i + 1].step))) : 1.0;
    if (chart.height < kHighEnough || place + kRoom > free_until) continue;
    put(html, "<span class=\"mark-label\" style=\"left:{:.2f}%\">{}</span>", 100 * place,
        escape_html(mark.label));
  }
  return html;
}

std::string compact(double value) {
  return std::isfinite(value) ? fmt::format("{:.5g}", value) : std::string("null");
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    for (const char c : text.substr(0, valid)) {
      switch (c) {
        case '&': out += "&amp;"; break;
        case '<': out += "&lt;"; break;
        case '>': out += "&gt;"; break;
        case '"': out += "&quot;"; break;
        case '\'': out += "&#39;"; break;
        case '\n':
        case '\t': out += c; break;
        default:
          if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
            out += "\xEF\xBF\xBD";
          } else {
            out += c;
          }
      }
    }
    text.remove_prefix(valid);
    if (!text.empty()) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(1);
    }
  }
  return out;
}

std::string in_script(std::string_view json) {
  std::string safe;
  for (const char c : json) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string axis_switch(bool starts_logarithmic) {
  // The style sheet shows one drawing or the other by which of these earlier siblings is checked.
  std::string html;
  for (const bool is_log : {false, true}) {
    put(html, "<input type=\"radio\" name=\"axis\" class=\"choice\" id=\"axis-{}\"{}>",
        is_log ? "log" : "linear", is_log == starts_logarithmic ? " checked" : "");
  }
  return html +
         "<p class=\"switch\"><label for=\"axis-linear\">linear axis</label>"
         "<label for=\"axis-log\">logarithmic</label></p>";
}

std::string render_chart(const Chart& chart) {
  const Range steps = step_range(chart);
  const bool has_two_axes = chart.has_log_axis && !sorted_values(chart, 0).empty();
  std::string html = fmt::format(
      "<figure class=\"chart{}\" id=\"{}\" role=\"img\" aria-label=\"{}\">"
      "<div class=\"plot\" style=\"height:{}px\">",
      has_two_axes ? " two-axes" : "", chart.id, escape_html(chart.description), chart.height);
  html += drawing(chart, steps, linear_range(chart));
  if (has_two_axes) html += drawing(chart, steps, log_range(chart));
  html += step_labels(steps, chart.height < 150 ? 3 : 5) + mark_lines(chart, steps);
  return html + "<i class=\"cursor\"></i><div class=\"tip\"></div></div></figure>\n";
}

std::string chart_data(const std::vector<Chart>& charts) {
  std::string json = "{";
  for (const auto& chart : charts) {
    const Range steps = step_range(chart);
    fmt::format_to(std::back_inserter(json), "{}\"{}\":{{\"x\":[{},{}],\"series\":[",
                   json.size() > 1 ? "," : "", chart.id, steps.low, steps.high);
    for (std::size_t i = 0; i < chart.series.size(); ++i) {
      const auto& series = chart.series[i];
      std::string x, tokens, y;
      for (const auto& point : downsample(series.points, kReportPoints)) {
        const char* comma = x.empty() ? "" : ",";
        fmt::format_to(std::back_inserter(x), "{}{}", comma, point.step);
        fmt::format_to(std::back_inserter(tokens), "{}{}", comma, point.tokens);
        fmt::format_to(std::back_inserter(y), "{}{}", comma, compact(point.value));
      }
      fmt::format_to(std::back_inserter(json),
                     "{}{{\"name\":{},\"style\":\"{}\",\"x\":[{}],\"tokens\":[{}],\"y\":[{}]}}",
                     i == 0 ? "" : ",", in_script(Json(series.name).dump()), series.style, x,
                     i == 0 ? tokens : "", y);
    }
    json += "]}";
  }
  return json + "}";
}

}  // namespace heddle::observe
