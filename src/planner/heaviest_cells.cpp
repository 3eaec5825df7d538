#include "planner/heaviest_cells.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace heddle::planner {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();

/// A flow of least cost from rows to columns, cells having room for 1, built row by row. Nodes are
/// the rows, then the columns. A cell that is taken leads back from its column to its row.
class CellFlow {
 public:
  CellFlow(const CellWeights& cells, int per_column)
      : rows_(static_cast<std::size_t>(cells.rows)),
        columns_(static_cast<std::size_t>(cells.columns)),
        weights_(cells.weights),
        most_(*std::ranges::max_element(weights_)),
        taken_(weights_.size()),
        room_(columns_, per_column),
        potential_(rows_ + columns_),
        distance_(rows_ + columns_),
        from_(rows_ + columns_),
        is_done_(rows_ + columns_) {}

  /// One more cell for this row, by the shortest way to a column that has room.
  void add_to(std::size_t row) {
    const std::size_t end = search(row);
    for (std::size_t node = 0; node < distance_.size(); ++node) {
      potential_[node] += std::min(distance_[node], distance_[end]);
    }
    --room_[end - rows_];
    for (std::size_t node = end; node != row; node = from_[node]) {
      const bool enters_column = node >= rows_;
      const std::size_t at = enters_column ? cell(from_[node], node) : cell(node, from_[node]);
      taken_[at] = enters_column ? 1 : 0;
    }
  }
  std::vector<char> result() { return std::move(taken_); }

 private:
  std::size_t cell(std::size_t row, std::size_t column) const {
    return row * columns_ + column - rows_;
  }

  /// Dijkstra with potentials, from the row to the nearest column with room.
  std::size_t search(std::size_t row) {
    std::ranges::fill(distance_, kFar);
    std::ranges::fill(is_done_, 0);
    distance_[row] = 0.0;
    while (true) {
      std::size_t node = distance_.size();
      double nearest = kFar;
      for (std::size_t other = 0; other < distance_.size(); ++other) {
        if (is_done_[other] || distance_[other] >= nearest) continue;
        node = other;
        nearest = distance_[other];
      }
      HEDDLE_CHECK(node < distance_.size(), "cells that cannot be chosen");
      if (node >= rows_ && room_[node - rows_] > 0) return node;
      is_done_[node] = 1;
      relax_from(node);
    }
  }

  void relax_from(std::size_t node) {
    const bool is_row = node < rows_;
    const std::size_t begin = is_row ? rows_ : 0, end = is_row ? rows_ + columns_ : rows_;
    for (std::size_t next = begin; next < end; ++next) {
      const std::size_t at = is_row ? cell(node, next) : cell(next, node);
      if (is_done_[next] || (taken_[at] != 0) == is_row) continue;
      const double cost = is_row ? most_ - weights_[at] : weights_[at] - most_;
      // Not below zero but by rounding.
      const double step = std::max(0.0, cost + potential_[node] - potential_[next]);
      if (distance_[node] + step >= distance_[next]) continue;
      distance_[next] = distance_[node] + step;
      from_[next] = node;
    }
  }

  std::size_t rows_, columns_;
  const std::vector<double>& weights_;
  double most_;
  std::vector<char> taken_;
  std::vector<int> room_;
  std::vector<double> potential_, distance_;
  std::vector<std::size_t> from_;
  std::vector<char> is_done_;
};

}  // namespace

std::vector<char> heaviest_cells(const CellWeights& cells, int per_row, int per_column) {
  HEDDLE_CHECK(cells.rows * per_row == cells.columns * per_column && per_row <= cells.columns,
               "{} of each of {} rows, {} of each of {} columns", per_row, cells.rows, per_column,
               cells.columns);
  CellFlow flow(cells, per_column);
  for (int row = 0; row < cells.rows; ++row) {
    for (int i = 0; i < per_row; ++i) flow.add_to(static_cast<std::size_t>(row));
  }
  return flow.result();
}

}  // namespace heddle::planner
