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

  int ranks() const { return request.dp * request.tp * request.pp; }
};

/// Every mesh of the grid, 2 to 8 ranks: each axis alone with all its options, then mixtures.
const std::vector<MeshCase>& mesh_cases();

/// "dp2_tp2_seq_pp2_zb_v_zero3": a test's name, unique in the grid.
std::string name_of(const MeshCase& mesh);
void PrintTo(const MeshCase& mesh, std::ostream* out);

/// Whether a model can lie on the mesh: heads and MLP width divide, and there are layers enough.
bool fits(const ModelSpec& spec, const ParallelRequest& request);

}  // namespace heddle
