#include "observe/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/strings.h"
#include "observe/report.h"

namespace heddle::observe {
namespace {

struct Range {
  double low = 0, high = 1;
  /// 0 at low, 1 at high.
  double place(double value) const { return (value - low) / (high - low); }
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
  std::optional<double> cut_peak;  ///< the largest value, when it lies above the range
};

// The range of the values, except that a few extreme peaks may run out of view: one gradient spike
// must not press the rest of the curve into a flat line.
ValueRange value_range(const Chart& chart) {
  std::vector<double> values;
  for (const auto& series : chart.series) {
    for (const auto& point : series.points) {
      if (std::isfinite(point.value)) values.push_back(point.value);
    }
  }
  if (values.empty()) return {{0, 1}, std::nullopt};
  std::sort(values.begin(), values.end());
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
  const double margin = high > low ? 0.06 * (high - low) : std::max(std::abs(high) * 0.1, 1e-9);
  const bool rests_on_zero = chart.from_zero && low == 0;
  // Below a bound that lies lowest there must be room for its label.
  const double foot = chart.bound && *chart.bound == low ? 30.0 / chart.height * (high - low) : 0;
  return {{rests_on_zero ? 0 : low - std::max(margin, foot), high + margin}, cut};
}

constexpr double kUnits = 1000;  // of the SVG's own coordinates, both ways

std::string path_data(const ChartSeries& series, const Range& steps, const Range& values) {
  std::string path;
  bool pen_down = false;
  for (const auto& point : downsample(series.points, kReportPoints)) {
    if (!std::isfinite(point.value)) {
      pen_down = false;
      continue;
    }
    const double x = kUnits * steps.place(static_cast<double>(point.step));
    // Far outside is cut off anyway; bounded, because some renderers fail on huge coordinates.
    const double y = kUnits * std::clamp(1 - values.place(point.value), -1.0, 2.0);
    const bool is_dot = series.style == "dots";
    fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", pen_down && !is_dot ? "L" : "M", x,
                   y);
    // A point of its own is a stroke without length, which its round cap makes visible.
    if (is_dot || !pen_down) path += "h0";
    pen_down = true;
  }
  return path;
}

std::string grid(const Range& values, const Ticks& ticks) {
  std::string path;
  for (const double tick : ticks.values) {
    fmt::format_to(std::back_inserter(path), "M0 {:.1f}H{}", kUnits * (1 - values.place(tick)),
                   kUnits);
  }
  return fmt::format("<path class=\"grid\" d=\"{}\"/>", path);
}

std::string labels(const Range& steps, const Range& values, const Ticks& value_ticks,
                   int steps_wanted) {
  std::string html;
  for (const double tick : value_ticks.values) {
    fmt::format_to(std::back_inserter(html), "<span class=\"ty\" style=\"top:{:.2f}%\">{}</span>",
                   100 * (1 - values.place(tick)), format_tick(tick, value_ticks.spacing));
  }
  const Ticks step_ticks = nice_ticks(steps.low, steps.high, steps_wanted);
  for (const double tick : step_ticks.values) {
    if (tick != std::floor(tick)) continue;
    fmt::format_to(std::back_inserter(html),
                   "<span class=\"tx{}\" style=\"left:{:.2f}%\">{}</span>",
                   steps.place(tick) > 0.97 ? " end" : "", 100 * steps.place(tick),
                   format_tick(tick, step_ticks.spacing));
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

Ticks nice_ticks(double low, double high, int wanted) {
  Ticks ticks;
  if (!(high > low) || !std::isfinite(high - low)) return ticks;
  const double rough = (high - low) / std::max(wanted, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double leading = rough / power;
  ticks.spacing = power * (leading < 1.5 ? 1 : leading < 3.5 ? 2 : leading < 7.5 ? 5 : 10);
  const double slack = 1e-9 * (high - low);
  for (double k = std::ceil((low - slack) / ticks.spacing); k * ticks.spacing <= high + slack;
       ++k) {
    ticks.values.push_back(k * ticks.spacing);
  }
  return ticks;
}

std::string format_tick(double value, double spacing) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size < 1e-3 || spacing < 1e-4) {
    const int exponent = static_cast<int>(std::floor(std::log10(size) + 1e-9));
    return fmt::format("{:.3g}e{}", value / std::pow(10.0, exponent), exponent);
  }
  // By the spacing rather than the value: the labels of one axis look alike.
  struct Unit {
    double size, spacing;
    const char* suffix;
  };
  for (const Unit& unit : {Unit{1e9, 1e8, "B"}, {1e6, 1e5, "M"}, {1e3, 2e3, "k"}}) {
    if (size >= unit.size && spacing >= unit.spacing) {
      return fmt::format("{:.4g}{}", value / unit.size, unit.suffix);
    }
  }
  if (spacing >= 1) return format_thousands(std::llround(value));
  const int digits = static_cast<int>(std::ceil(-std::log10(spacing) - 1e-9));
  return fmt::format("{:.{}f}", value, digits);
}

std::string render_chart(const Chart& chart) {
  const Range steps = step_range(chart);
  const auto [values, cut_peak] = value_range(chart);
  const Ticks value_ticks = nice_ticks(values.low, values.high, chart.height > 250 ? 6 : 3);
  std::string html = fmt::format(
      "<figure class=\"chart\" id=\"{}\" role=\"img\" aria-label=\"{}\">"
      "<div class=\"plot\" style=\"height:{}px\">"
      "<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" aria-hidden=\"true\">{}",
      chart.id, escape_html(chart.description), chart.height, kUnits, kUnits,
      grid(values, value_ticks));
  for (const auto& series : chart.series) {
    fmt::format_to(std::back_inserter(html), "<path class=\"{}\" d=\"{}\"/>", series.style,
                   path_data(series, steps, values));
  }
  const double bound_top = chart.bound ? 1 - values.place(*chart.bound) : 0;
  if (chart.bound) {
    fmt::format_to(std::back_inserter(html), "<path class=\"bound\" d=\"M0 {0:.1f}H{1}\"/>",
                   kUnits * bound_top, kUnits);
  }
  html += "</svg>" + labels(steps, values, value_ticks, chart.height < 150 ? 3 : 5);
  if (chart.bound) {
    fmt::format_to(std::back_inserter(html),
                   "<span class=\"bound-label\" style=\"top:{:.2f}%\">{}</span>", 100 * bound_top,
                   escape_html(chart.bound_label));
  }
  html += "<i class=\"cursor\"></i><div class=\"tip\"></div></div>";
  if (cut_peak) {
    fmt::format_to(std::back_inserter(html),
                   "<figcaption>Peaks up to {:.4g} run out of view.</figcaption>", *cut_peak);
  }
  return html + "</figure>\n";
}

std::string chart_data(const std::vector<Chart>& charts) {
  std::string json = "{";
  for (const auto& chart : charts) {
    const Range steps = step_range(chart);
    const Range values = value_range(chart).range;
    fmt::format_to(std::back_inserter(json), "{}\"{}\":{{\"x\":[{},{}],\"y\":[{},{}],\"series\":[",
                   json.size() > 1 ? "," : "", chart.id, steps.low, steps.high, values.low,
                   values.high);
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
                     "{}{{\"name\":\"{}\",\"style\":\"{}\",\"x\":[{}],\"tokens\":[{}],\"y\":[{}]}}",
                     i == 0 ? "" : ",", series.name, series.style, x, i == 0 ? tokens : "", y);
    }
    json += "]}";
  }
  return json + "}";
}

}  // namespace heddle::observe
