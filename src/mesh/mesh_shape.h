#pragma once

#include <array>
#include <string>
#include <vector>

#include "mesh/axis.h"

namespace heddle {

/// The sizes of a mesh in all its views. A value: what it says of ranks is arithmetic.
class MeshShape {
 public:
  int size(Axis axis) const;
  /// Ranks of a group over these axes.
  int size(AxisSet axes) const;
  /// Of kv and edp the size follows from the others.
  MeshShape with(Axis axis, int size) const;
  int ranks() const;

  /// Where a rank stands on an axis. Of the dense view tp is the fastest, then cp, dp, pp, site.
  int coord(Axis axis, int rank) const;
  /// Whether the rank stands first on all of these axes.
  bool is_first(AxisSet axes, int rank) const;
  /// The ranks that differ from this one on these axes only, ascending.
  std::vector<int> group(AxisSet axes, int rank) const;

  /// Only axes with more than one rank.
  AxisSet occupied(AxisSet axes) const;
  /// "dp=2 tp=2 pp=1"; with sites, cp, ep and etp where they have more than one rank.
  std::string text() const;

  /// The pipeline ranks of the first and the last stage: those that both hold tied embeddings.
  std::array<int, 2> ends = {0, 0};
  /// Communicators over the pipeline beside the axis's own, for collectives whose order among each
  /// other differs from rank to rank.
  int lanes = 0;
  /// Whether the ranks of a stage have a communicator, beside those of their axes.
  bool joins_stages = false;

 private:
  /// Ranks between neighbours on the axis.
  int stride(Axis axis) const;

  std::array<int, kAxes> sizes_ = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
};

}  // namespace heddle
