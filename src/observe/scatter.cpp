#include "observe/scatter.h"

#include <fmt/format.h>

#include "observe/chart.h"
#include "observe/put.h"
#include "observe/ticks.h"

namespace heddle::observe {
namespace {

class Drawing {
 public:
  explicit Drawing(const Scatter& scatter) : scatter_(scatter) {}

  std::string strokes() const {
    std::string svg =
        grid() + dots(scatter_.dots_over, "cloud over") + dots(scatter_.dots, "cloud");
    // A step: with more memory nothing gets worse, and the next better one begins at its own.
    std::string line;
    for (const auto& point : scatter_.points) {
      if (!is_inside(point.x, point.y)) continue;
      const double x = kSvgUnits * across(point.x), y = kSvgUnits * down(point.y);
      if (line.empty()) {
        put(line, "M{:.1f} {:.1f}", x, y);
      } else {
        put(line, "H{:.1f}V{:.1f}", x, y);
      }
    }
    put(svg, "<path class=\"front\" d=\"{}\"/>", line);
    if (scatter_.limit) {
      put(svg, "<path class=\"limit\" d=\"M{:.1f} 0V{}\"/>", kSvgUnits * across(*scatter_.limit),
          kSvgUnits);
    }
    return svg;
  }

  std::string labels() const {
    std::string html;
    const auto y = nice_ticks(scatter_.low.y, scatter_.high.y, 5);
    const auto y_labels = tick_labels(y);
    for (std::size_t i = 0; i < y.size(); ++i) {
      put(html, "<span class=\"ty\" style=\"top:{:.2f}%\">{}</span>", 100 * down(y[i]),
          y_labels[i]);
    }
    const auto x = nice_ticks(scatter_.low.x, scatter_.high.x, 5);
    const auto x_labels = tick_labels(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      put(html, "<span class=\"tx{}{}\" style=\"left:{:.2f}%\">{}</span>",
          across(x[i]) > 0.97 ? " end" : "", i % 2 == 1 ? " odd" : "", 100 * across(x[i]),
          x_labels[i]);
    }
    if (scatter_.limit) {
      put(html, "<span class=\"limit-label\" style=\"left:{:.2f}%\">{}</span>",
          100 * across(*scatter_.limit), escape_html(scatter_.limit_name));
    }
    return html;
  }

  std::string points() const {
    std::string html;
    for (const auto& point : scatter_.points) html += point_html(point);
    return scatter_.chosen ? html + point_html(*scatter_.chosen) : html;
  }

 private:
  double across(double x) const {
    return (x - scatter_.low.x) / (scatter_.high.x - scatter_.low.x);
  }
  double down(double y) const {
    return 1.0 - (y - scatter_.low.y) / (scatter_.high.y - scatter_.low.y);
  }
  bool is_inside(double x, double y) const {
    return x >= scatter_.low.x && x <= scatter_.high.x && y >= scatter_.low.y &&
           y <= scatter_.high.y;
  }

  std::string point_html(const Scatter::Point& point) const {
    if (!is_inside(point.x, point.y)) return "";
    const double x = across(point.x), y = down(point.y);
    return fmt::format(
        "<b class=\"point {}{}{}\" style=\"left:{:.2f}%;top:{:.2f}%\"><em>{}</em></b>", point.style,
        x > 0.7   ? " left"
        : x < 0.3 ? " right"
                  : "",
        y < 0.35 ? " low" : "", 100 * x, 100 * y, escape_html(point.note));
  }

  std::string grid() const {
    std::string path;
    for (const double tick : nice_ticks(scatter_.low.y, scatter_.high.y, 5)) {
      put(path, "M0 {:.1f}H{}", kSvgUnits * down(tick), kSvgUnits);
    }
    return fmt::format("<path class=\"grid\" d=\"{}\"/>", path);
  }

  std::string dots(const std::vector<Scatter::Dot>& all, const char* style) const {
    std::string path;
    for (const auto& dot : all) {
      if (!is_inside(dot.x, dot.y)) continue;
      // A stroke without length, which its round cap makes visible.
      put(path, "M{:.0f} {:.0f}h0", kSvgUnits * across(dot.x), kSvgUnits * down(dot.y));
    }
    return fmt::format("<path class=\"{}\" d=\"{}\"/>", style, path);
  }

  const Scatter& scatter_;
};

}  // namespace

std::string render_scatter(const Scatter& scatter) {
  const Drawing drawing(scatter);
  return fmt::format(
      "<figure class=\"chart scatter\" role=\"img\" aria-label=\"{}\"><div class=\"plot\" "
      "style=\"height:{}px\"><svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" "
      "aria-hidden=\"true\">{}</svg>{}{}</div><figcaption>{}</figcaption></figure>\n",
      escape_html(scatter.description), scatter.height, kSvgUnits, kSvgUnits, drawing.strokes(),
      drawing.labels(), drawing.points(), escape_html(scatter.axes));
}

}  // namespace heddle::observe
