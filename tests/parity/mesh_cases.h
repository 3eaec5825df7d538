#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "model/parallel_plan.h"

namespace heddle {

/// One mesh of the grid that the tests of this folder walk through.
struct MeshCase {
  ParallelRequest request = {};
  bool recompute = false;
  std::int64_t mlp_tokens =
      0;  ///< that an MLP of a recomputed block computes at once; 0: the usual
  Compression compress = {};
  DType dtype = DType::f32;  ///< f64: for comparisons beyond what rounding allows

  int ranks() const { return static_cast<int>(request.ranks()); }
};

/// Every mesh of the grid, 2 to 8 ranks: each axis alone with all its options, then mixtures.
const std::vector<MeshCase>& mesh_cases();
/// The same for axis cp: every method and order on 2 to 8 ranks, then mixtures with other axes.
const std::vector<MeshCase>& context_cases();

/// "dp2_tp2_seq_pp2_zb_v_zero3": a test's name, unique in the grid.
std::string name_of(const MeshCase& mesh);
void PrintTo(const MeshCase& mesh, std::ostream* out);

/// Whether a model can lie on the mesh: heads and MLP width divide, and there are layers enough.
/// With cp, heads can also be dealt out as the method needs.
bool fits(const ModelSpec& spec, const ParallelRequest& request);

}  // namespace heddle
