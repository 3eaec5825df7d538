#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace heddle::observe {

/// Horizontal bars of several parts on one scale, a row each, with a legend. HTML, no script.
struct StackedBars {
  struct Part {
    std::string name;
    char colour =
        'a';  ///< a blue, b light blue, c orange, d green, e violet, f grey, g pale, h ochre
  };
  struct Row {
    std::string name, note = {};  ///< the note is small, below the name
    std::vector<double>
        parts;  ///< in the order of `StackedBars::parts`; left out when not positive
    std::string total, total_note = {};
  };

  std::vector<Part> parts = {};
  std::vector<Row> rows = {};
  std::function<std::string(double)> format;  ///< what a part is when pointed at
  std::optional<double> limit = {};           ///< a line across all bars
  std::string limit_name = {};
};

/// All text is escaped. Parts that no row has are left out of the legend.
std::string render_bars(const StackedBars& bars);

}  // namespace heddle::observe
