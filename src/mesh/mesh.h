#pragma once

#include <array>
#include <memory>

#include "comm/communicator.h"
#include "mesh/layout.h"

namespace heddle {

/// Arranges the ranks of a run along the axes and holds this rank's communicator for each. An axis
/// of size one has the self communicator, so nothing needs a special case.
class Mesh {
 public:
  /// The mesh of a single process.
  Mesh();

  int size(Axis axis) const { return comm(axis).size(); }
  int coord(Axis axis) const { return comm(axis).rank(); }
  Communicator& comm(Axis axis) const { return *comms_[static_cast<std::size_t>(axis)]; }
  int ranks() const;

 private:
  std::array<std::unique_ptr<Communicator>, kAxes> comms_;
};

}  // namespace heddle
