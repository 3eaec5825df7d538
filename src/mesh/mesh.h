#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "mesh/layout.h"
#include "mesh/mesh_shape.h"

namespace heddle {

/// What has travelled on each axis, and in the groups beside them.
struct MeshTraffic {
  std::array<CommCounts, kAxes> by_axis{};
  CommCounts groups;  ///< over several axes at once
  CommCounts ends, lanes;

  const CommCounts& on(Axis axis) const { return by_axis[static_cast<std::size_t>(axis)]; }
  CommCounts& on(Axis axis) { return by_axis[static_cast<std::size_t>(axis)]; }

  /// Calls visit(group name, counts of this, counts of that one) for every group.
  template <class Visit>
  void with(MeshTraffic& other, const Visit& visit) {
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      visit(name_of(static_cast<Axis>(axis)), by_axis[axis], other.by_axis[axis]);
    }
    visit("several axes", groups, other.groups);
    visit("pp ends", ends, other.ends);
    visit("pp lanes", lanes, other.lanes);
  }
};

/// What has travelled between two moments.
MeshTraffic operator-(MeshTraffic after, MeshTraffic before);

/// Arranges the ranks of a run along the axes and holds this rank's communicators. An axis of size
/// one has the self communicator, so nothing needs a special case.
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
  int size(Axis axis) const { return shape_.size(axis); }
  int coord(Axis axis) const { return shape_.coord(axis, rank_); }
  Communicator& comm(Axis axis) const { return group({axis}); }
  /// The ranks that differ from this one on these axes only, in ascending order. Over several axes
  /// there are only what ZeRO divides state over, kTokenAxes, and with MeshShape::joins_stages the
  /// ranks of a stage, kStageAxes.
  Communicator& group(AxisSet axes) const;
  /// The first and the last stage's ranks; the self communicator on all others, and where one rank
  /// has both.
  Communicator& ends() const { return *ends_; }
  bool is_end() const;
  Communicator& lane(int index) const { return *lanes_[static_cast<std::size_t>(index)]; }

  /// Sums `inout` over these axes, one after the other, the fastest first: every mesh adds in the
  /// same order. Waits.
  void sum(const Tensor& inout, AxisSet axes, Stream& stream) const;
  /// The largest of the numbers of these ranks; waits.
  double largest(double value, AxisSet axes) const;
  /// Throws Error(peer) when another rank has failed (Communicator::check).
  void check() const;
  /// What this rank has sent so far.
  MeshTraffic traffic() const;
  /// The recorder of all calls of this rank.
  FlightRecorder& flight() const { return *flight_; }

 private:
  using MakeGroup = std::function<std::unique_ptr<Communicator>(const std::vector<int>& members,
                                                                const std::string& name)>;
  void make_groups(const MakeGroup& make);

  MeshShape shape_;
  int rank_ = 0;
  std::shared_ptr<FlightRecorder> flight_;
  std::map<AxisSet, std::unique_ptr<Communicator>> groups_;
  std::unique_ptr<Communicator> self_;  // of every group of one
  std::unique_ptr<Communicator> ends_;
  std::vector<std::unique_ptr<Communicator>> lanes_;
};

}  // namespace heddle
