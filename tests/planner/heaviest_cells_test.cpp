#include "planner/heaviest_cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "base/rng.h"

namespace heddle::planner {
namespace {

/// The best of all choices, row by row.
double best_by_trial(const CellWeights& cells, int per_row, std::vector<int> room, int row) {
  if (row == cells.rows) return 0.0;
  double best = -1e9;
  for (unsigned set = 0; set < 1U << cells.columns; ++set) {
    if (std::popcount(set) != per_row) continue;
    std::vector<int> left = room;
    double sum = 0.0;
    bool fits = true;
    for (int column = 0; column < cells.columns; ++column) {
      if ((set >> column & 1U) == 0) continue;
      fits = fits && --left[static_cast<std::size_t>(column)] >= 0;
      sum += cells.weights[static_cast<std::size_t>(row * cells.columns + column)];
    }
    if (fits) best = std::max(best, sum + best_by_trial(cells, per_row, left, row + 1));
  }
  return best;
}

TEST(HeaviestCells, AreTheBestOfAllChoices) {
  struct Case {
    int rows, columns, per_row, per_column;
  };
  for (const auto& [rows, columns, per_row, per_column] :
       {Case{4, 4, 1, 1}, Case{6, 3, 1, 2}, Case{4, 4, 2, 2}, Case{6, 2, 1, 3}, Case{5, 5, 3, 3}}) {
    for (std::uint64_t key = 0; key < 60; ++key) {
      CellWeights cells{rows, columns, {}};
      for (int i = 0; i < rows * columns; ++i) {
        // Small integers, so that many are equal.
        cells.weights.push_back(
            static_cast<double>(random_u64(key, static_cast<std::uint64_t>(i)) % 5));
      }
      const std::vector<char> taken = heaviest_cells(cells, per_row, per_column);
      double sum = 0.0;
      for (int row = 0; row < rows; ++row) {
        int count = 0;
        for (int column = 0; column < columns; ++column) {
          const auto at = static_cast<std::size_t>(row * columns + column);
          count += taken[at];
          sum += taken[at] * cells.weights[at];
        }
        ASSERT_EQ(count, per_row);
      }
      for (int column = 0; column < columns; ++column) {
        int count = 0;
        for (int row = 0; row < rows; ++row) {
          count += taken[static_cast<std::size_t>(row * columns + column)];
        }
        ASSERT_EQ(count, per_column);
      }
      const std::vector<int> room(static_cast<std::size_t>(columns), per_column);
      ASSERT_DOUBLE_EQ(sum, best_by_trial(cells, per_row, room, 0)) << key;
    }
  }
}

}  // namespace
}  // namespace heddle::planner
