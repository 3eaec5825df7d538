#pragma once

#include <array>
#include <optional>

#include "comm/communicator.h"
#include "engine/peer_copy.h"
#include "model/decoder.h"
#include "model/parallel_plan.h"
#include "model/spec.h"
#include "optim/optimizer.h"
#include "tensor/memory.h"

namespace heddle {

/// The memory of a training step: what `Memory` will have handed out at the peak, by tag.
struct MemoryPlan {
  BytesByTag at_peak{};
  std::size_t peak = 0;
  std::size_t reserved = 0;  ///< held from the system, blocks kept for reuse included
  std::size_t kept = 0;      ///< the most activations alive between two units: kept for backward
};

/// What one rank does in a step, before it does it.
struct StepPlan {
  MemoryPlan memory;         ///< of the step that holds most, where sites meet in some only
  BytesByTag before_step{};  ///< held between steps
  MeshTraffic traffic;       ///< but what sites send each other
  /// Of an optimizer whose steps become others behind its warm-up (behind_warm_up): the traffic of
  /// the first of them since the program was started, and of those that follow. `memory` is that of
  /// the larger phase.
  struct Later {
    MeshTraffic first, traffic;
  };
  std::optional<Later> later = {};
  CommCounts outer;  ///< what sites send: in OuterPolicy::every steps, once all fragments are sent
};

/// The micro-batches of one rank.
struct BatchShape {
  std::int64_t sequences = 1, seq_len = 1;
  int microbatches = 1;
};

/// Where and how the step will run. The device need not be there.
struct StepPlace {
  Device device = {};
  bool deterministic = false;  ///< as Stream::set_deterministic
  OptimizerConfig optimizer = {};
  KeptCopies copies = KeptCopies::none;  ///< of other ranks' state, where that is nowhere else
  std::vector<int> left_out = {};        ///< Model::leave_out
  bool is_behind_warm_up = false;        ///< only the steps behind it; set by plan_step itself
};

/// Found by running the step's own code on a dry stream, a dry memory and communicators that only
/// count: nothing is computed, touched or sent, but every allocation and every call is made in its
/// place, so prediction and engine cannot drift apart. The one thing added is what
/// attention's gradients take beside it on a GPU.
///
/// Of a step with very many micro-batches only as many are run as it takes until another one adds
/// the same as the one before, which is looked at; so a million take no longer than a hundred. The
/// result is that of the whole step, only `reserved` on a GPU may be off by a chunk of its pool.
StepPlan plan_step(const ModelSpec& spec, const BuildOptions& options, const ParallelPlan& plan,
                   int rank, const BatchShape& batch, const StepPlace& place = {});

/// The same by running every micro-batch: what the short way is checked against.
StepPlan plan_whole_step(const ModelSpec& spec, const BuildOptions& options,
                         const ParallelPlan& plan, int rank, const BatchShape& batch,
                         const StepPlace& place = {});

/// What a rank with these units sends to other sites in a step.
CommCounts outer_traffic(const ParallelPlan& plan, const RankUnits& units, std::int64_t step);

/// The memory of a step on a single rank.
MemoryPlan plan_training_memory(const ModelSpec& spec, const BuildOptions& options,
                                std::int64_t sequences, std::int64_t seq_len, int microbatches);

}  // namespace heddle
