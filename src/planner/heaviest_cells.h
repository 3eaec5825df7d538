#pragma once

#include <vector>

namespace heddle::planner {

/// A matrix by rows.
struct CellWeights {
  int rows = 0, columns = 0;
  std::vector<double> weights = {};
};

/// Which cells to take so that their weights add up to the most: of every row exactly `per_row`, of
/// every column exactly `per_column`. The two must agree about how many cells that is. With one per
/// row and per column a matching. By shortest augmenting paths, in rows x per_row x (rows +
/// columns)^2 steps. By rows, 1 for a taken cell; of equal choices always the same.
std::vector<char> heaviest_cells(const CellWeights& cells, int per_row, int per_column);

}  // namespace heddle::planner
