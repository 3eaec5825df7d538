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
  KeptCopies copies = KeptCopies::none;   ///< that ranks kept of others' state
  StageBlocks blocks = {};                ///< of the pipeline
  std::vector<LostBlocks> left_out = {};  ///< of these, what nothing went through
  std::vector<int> sites = {0};           ///< the numbers of all

  /// The number of its own.
  int site() const { return sites[static_cast<std::size_t>(mesh.coord(Axis::site, rank))]; }
  /// Of the pipeline, with those that were left out.
  Stages stages() const { return stages_of(blocks, mesh.size(Axis::pp), left_out); }
};

/// How the members of an epoch are arranged.
struct Arrangement {
  /// What was asked for, with `dp` said, and fewer sites, and `pp` cut, where it must.
  ParallelRequest request = {};
  std::vector<int> sites = {};     ///< their numbers, ascending; of a run without sites: 0
  std::vector<int> by_place = {};  ///< members by their rank in the mesh
  std::vector<int> spares = {};    ///< those who wait, ascending
  /// Stages of the pipeline of before that are left out (FormerStages), ascending.
  std::vector<int> left_out = {};
  bool keeps_stages = false;  ///< all others have a rank each; otherwise the pipeline is cut anew

  int ranks() const { return static_cast<int>(by_place.size()); }
};

/// Why a model cannot be trained so; empty: it can.
using Refusal = std::function<std::string(const ParallelRequest& request)>;

/// Whether replicas may have shares of a step that differ by one micro-batch, which blank ones
/// fill.
enum class Shares : std::uint8_t { any, even };

/// The pipeline of before: how many stages it had, and those that nobody has the state of, which
/// may be left out where there are not ranks for all.
struct FormerStages {
  int count = 0;
  std::vector<int> nobodys = {};  ///< ascending
};

/// What is said of the run of before beside places.
struct Former {
  FormerStages stages = {};
  std::vector<int> whole_sites = {};  ///< numbers of those that have lost nothing, ascending
};

/// Keeps tp, cp and pp (and ep, or the largest part of it that the ranks allow), with as many whole
/// replicas as there are members for (and micro-batches in a step, and with even shares a divisor
/// of them); who is left over is a spare. Sites keep as many replicas each as all of them can have;
/// where replicas are fewer than sites, there are fewer sites, first of those that are whole. Where
/// not one replica is whole, the pipeline is made as long as the members allow; of the stages that
/// nobody has so many are left out then that the others have a rank each, if that is enough. Places
/// go first to those who stood there, then to those who have the same state, then to any, each time
/// by seniority: the order of `members`, in which newcomers have no place. The same on all who call
/// it with the same. Error(usage) where nothing can be done with so few.
Arrangement mesh_for(const ParallelRequest& asked,
                     const std::vector<std::optional<FormerPlace>>& members,
                     std::int64_t microbatches, const Refusal& refusal, Shares shares = Shares::any,
                     const Former& former = {});

/// The sizes alone: of a request with nothing left open.
MeshShape shape_of(const ParallelRequest& request);

}  // namespace heddle::recover
