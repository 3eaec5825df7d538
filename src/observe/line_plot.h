#pragma once

#include <string>
#include <utility>
#include <vector>

namespace heddle::observe {

/// A few curves over a logarithmic axis, as a picture of its own.
struct LinePlot {
  struct Line {
    std::string name;                                    ///< in the legend; escaped, as the others
    std::vector<std::pair<double, double>> points = {};  ///< ascending in x, which is positive
  };
  std::string title;  ///< also for people who do not see the picture
  std::string across, up;
  double low = 0.0, high = 1.0;  ///< of the axis that goes up
  std::vector<Line> lines = {};  ///< at most six have a colour of their own
};

/// An <svg> element that needs nothing around it and follows the reader's light or dark setting.
std::string render_line_plot(const LinePlot& plot);

}  // namespace heddle::observe
