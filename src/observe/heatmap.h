#pragma once

#include <string>
#include <vector>

namespace heddle::observe {

/// Rows of cells whose colour says a number: pale below `middle`, which has none, to blue; above
/// it to orange, at `most`. HTML, no script; all text is escaped.
struct Heatmap {
  struct Cell {
    double value = 0;
    std::string note;  ///< when pointed at
  };
  struct Row {
    std::string name;
    std::vector<Cell> cells;
    std::string total;  ///< at the end of the row
  };
  std::string description;  ///< for people who do not see the picture
  std::vector<Row> rows;
  double least = 0, middle = 1, most = 2;  ///< of the colours
  std::string first, last;                 ///< below the first and the last column
};

std::string render_heatmap(const Heatmap& map);

}  // namespace heddle::observe
