#pragma once

#include <optional>
#include <string>
#include <vector>

namespace heddle::observe {

/// Many points of which a few have names, and a line through those. Strokes are SVG that stretches
/// with the page, labels and named points are HTML on top; what a point is shows under the pointer
/// without a script. What lies outside the range is left out.
struct Scatter {
  struct Dot {
    double x = 0, y = 0;
  };
  struct Point {
    double x = 0, y = 0;
    std::string note;   ///< shown under the pointer; escaped
    std::string style;  ///< CSS classes: "", "over", "chosen"
  };

  std::string description;  ///< for people who do not see the picture
  std::string axes;         ///< one line below: what is across, what is up
  int height = 320;         ///< in CSS pixels
  Dot low, high;            ///< the range
  std::vector<Dot> dots = {};
  std::vector<Dot> dots_over = {};  ///< of those on the other side of the limit
  std::vector<Point> points = {};   ///< on the line; ascending in x
  std::optional<Point> chosen = {};
  std::optional<double> limit = {};  ///< of x: a dashed line
  std::string limit_name = {};
};

std::string render_scatter(const Scatter& scatter);

}  // namespace heddle::observe
