#pragma once

#include "mesh/layout.h"
#include "mesh/mesh_shape.h"

namespace heddle {

/// Who does what with a parameter that lies so on a mesh: the table of
/// docs/design/019-views-and-groups.md. Nothing else decides it.
struct Ownership {
  AxisSet divides;  ///< over which its gradient is summed, and which ZeRO divides its state over
  AxisSet sums;     ///< over which its gradient is summed beside those
  bool sums_ends = false;  ///< also over the two ends of the pipeline
  AxisSet alike;           ///< on which others hold the same elements; the first of them counts
  AxisSet own;             ///< on which others hold other values of the same elements
};

Ownership ownership(const Layout& layout);

/// Whether the rank is the one that counts the elements that it holds of such a parameter, of all
/// ranks of its site that hold them. `is_divided`: by ZeRO, among the ranks that would.
bool counts(const Ownership& ownership, const MeshShape& shape, int rank, bool is_divided);

/// What a rank writes of the elements of a parameter that it holds: all ranks of a group hold the
/// same ones, and each writes a part of them.
struct WriteShare {
  AxisSet among;             ///< the group's axes
  int index = 0, count = 0;  ///< which of how many parts; of none where count is 0
};
/// Over all sites, every element is in exactly one rank's share.
WriteShare write_share(const Ownership& ownership, const MeshShape& shape, int rank,
                       bool is_divided);

/// The first axis with several ranks that the layout says nothing of, as text; empty when there is
/// none.
std::string unsaid_axis(const Layout& layout, const MeshShape& shape);

}  // namespace heddle
