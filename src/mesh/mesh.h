#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "mesh/layout.h"

namespace heddle {

/// The sizes of a mesh, and the groups beside its axes.
struct MeshShape {
  std::array<int, kAxes> sizes = {1, 1, 1, 1, 1};
  int copies = 1;  ///< neighbouring tp ranks that hold the same key heads
  /// The pipeline ranks of the first and the last stage: those that both hold tied embeddings.
  std::array<int, 2> ends = {0, 0};
  /// Communicators over the pipeline beside the axis's own, for collectives whose order among each
  /// other differs from rank to rank.
  int lanes = 0;

  int size(Axis axis) const { return sizes[static_cast<std::size_t>(axis)]; }
  MeshShape with(Axis axis, int size) const;
  int ranks() const;
  /// Where a rank stands: tp is the fastest axis, then cp, dp, and pp the slowest.
  int coord(Axis axis, int rank) const;
  /// "dp=2 tp=2 pp=1".
  std::string text() const;
};

/// What has travelled on each axis, and in the groups beside them.
struct MeshTraffic {
  std::array<CommCounts, kAxes> by_axis{};
  CommCounts copies, ends, lanes;

  /// Calls visit(group name, counts of this, counts of that one) for every group.
  template <class Visit>
  void with(MeshTraffic& other, const Visit& visit) {
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      visit(name_of(static_cast<Axis>(axis)), by_axis[axis], other.by_axis[axis]);
    }
    visit("tp copies", copies, other.copies);
    visit("pp ends", ends, other.ends);
    visit("pp lanes", lanes, other.lanes);
  }
};

/// Arranges the ranks of a run along the axes and holds this rank's communicator for each. An axis
/// of size one has the self communicator, so nothing needs a special case.
class Mesh {
 public:
  /// The mesh of a single process.
  Mesh();
  /// Every rank of `world` makes its mesh at the same time.
  Mesh(const MeshShape& shape, Communicator& world);
  /// The mesh as `rank` sees it, on which nothing travels: for dry runs.
  static Mesh recorded(const MeshShape& shape, int rank);

  const MeshShape& shape() const { return shape_; }
  int rank() const { return rank_; }
  int ranks() const { return shape_.ranks(); }
  int size(Axis axis) const { return comm(axis).size(); }
  int coord(Axis axis) const { return comm(axis).rank(); }
  Communicator& comm(Axis axis) const { return *comms_[static_cast<std::size_t>(axis)]; }
  /// The tp ranks that hold the same key heads as this one.
  Communicator& copies() const { return *copies_; }
  /// The first and the last stage's ranks; the self communicator on all others, and where one rank
  /// has both.
  Communicator& ends() const { return *ends_; }
  bool is_end() const;
  Communicator& lane(int index) const { return *lanes_[static_cast<std::size_t>(index)]; }
  /// What this rank has sent so far.
  MeshTraffic traffic() const;

 private:
  using MakeGroup =
      std::function<std::unique_ptr<Communicator>(int color, int key, int size, const char* name)>;
  void make_groups(const MakeGroup& make);

  MeshShape shape_;
  int rank_ = 0;
  std::array<std::unique_ptr<Communicator>, kAxes> comms_;
  std::unique_ptr<Communicator> copies_, ends_;
  std::vector<std::unique_ptr<Communicator>> lanes_;
};

}  // namespace heddle
