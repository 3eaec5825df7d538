#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/peer_copy.h"
#include "mesh/mesh_shape.h"
#include "parallel/parallel_request.h"
#include "recover/checkfree.h"

namespace heddle::recover {

/// Where a member stood when the last epoch ended, whose part of the state it has.
struct FormerPlace {
  MeshShape mesh = {};
  int rank = 0;
  int zero = 0;
  KeptCopies copies = KeptCopies::none;  ///< that ranks kept of others' state
  StageBlocks blocks = {};               ///< of the pipeline
};

/// How the members of an epoch are arranged.
struct Arrangement {
  ParallelRequest request = {};  ///< what was asked for, with `dp` said, and `pp` cut where it must
  std::vector<int> by_place = {};  ///< members by their rank in the mesh
  std::vector<int> spares = {};    ///< those who wait, ascending

  int ranks() const { return static_cast<int>(by_place.size()); }
};

/// Why a model cannot be trained so; empty: it can.
using Refusal = std::function<std::string(const ParallelRequest& request)>;

/// Whether replicas may have shares of a step that differ by one micro-batch, which blank ones
/// fill.
enum class Shares : std::uint8_t { any, even };

/// Keeps tp, cp and pp, with as many whole replicas as there are members for (and micro-batches in
/// a step, and with even shares a divisor of them); who is left over is a spare. Where not one
/// replica is whole, the pipeline is made as long as the members allow. Places go first to those
/// who stood there, then to those who have the same state, then to any, each time by seniority: the
/// order of `members`, in which newcomers have no place. The same on all who call it with the same.
/// Error(usage) where nothing can be done with so few.
Arrangement mesh_for(const ParallelRequest& asked,
                     const std::vector<std::optional<FormerPlace>>& members,
                     std::int64_t microbatches, const Refusal& refusal,
                     Shares shares = Shares::any);

/// The sizes alone: of a request with nothing left open.
MeshShape shape_of(const ParallelRequest& request);

}  // namespace heddle::recover
