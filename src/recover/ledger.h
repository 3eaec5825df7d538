#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "mesh/mesh_shape.h"

namespace heddle::recover {

/// What one replica does of a step.
struct Share {
  BatchPlan plan = {};  ///< what it reads; of all replicas together every sample once
  /// Micro-batches without targets that it adds, since all replicas need the same number of them.
  std::int64_t blanks = 0;

  std::int64_t accumulation() const { return plan.batches_per_step + blanks; }
};

/// Which samples a run has used, over all its epochs. Step t is made of samples
/// [t * samples_per_step, (t + 1) * samples_per_step) whoever is there, so batches keep their size;
/// an epoch only says how many data-parallel replicas divide them, those of all sites, in whole
/// micro-batches and in the order of samples. A step counts once, in the epoch that finished it.
///
/// Of sites that stay in step; others keep shares of their own.
class Ledger {
 public:
  /// Error(usage) where a step is not made of whole micro-batches.
  Ledger(std::int64_t samples_per_step, std::int64_t rows_per_batch);

  /// A new mesh takes the steps behind `steps` finished ones. Members finish a step at most one
  /// apart, and what one of them has finished counts. Error(internal) where samples would be
  /// used twice or never, Error(usage) where there are more replicas than micro-batches.
  void begin_epoch(std::uint64_t epoch, std::int64_t steps, const MeshShape& mesh);
  /// The step (from 1) is finished in the epoch that began last.
  void finished(std::int64_t step);
  /// Weights are those of an older step again, so later samples are not used: a checkpoint was
  /// restored. A new epoch has to begin.
  void go_back(std::int64_t steps);

  std::int64_t steps() const { return steps_; }
  /// What a rank of the mesh that began last reads. Ranks of one replica read the same.
  Share share(int rank) const;

  /// Who used a sample.
  struct Use {
    std::int64_t step = 0;  ///< from 1
    std::uint64_t epoch = 0;
    int replica = 0;
    std::int64_t micro_batch = 0;  ///< of that replica
  };
  /// Of one of the samples used so far.
  Use use_of(std::int64_t sample) const;

  /// "steps 1 to 120 by 4 replicas, 121 to 300 by 3", from where this process knows.
  std::string text() const;

 private:
  struct Stretch {
    std::uint64_t epoch = 0;
    std::int64_t steps_before = 0;
    int replicas = 1;
  };
  std::int64_t micro_batches() const { return samples_per_step_ / rows_per_batch_; }
  /// Of a step's micro-batches the first of a replica; of the replica behind the last: all.
  std::int64_t first_of(int replica, int replicas) const;

  const std::int64_t samples_per_step_, rows_per_batch_;
  std::int64_t steps_ = 0;
  std::optional<std::uint64_t> epoch_;  // the last that began
  bool is_back_ = false;                // and no epoch began since
  MeshShape mesh_;
  std::vector<Stretch> stretches_;  // ascending; of equal steps_before only the last
};

}  // namespace heddle::recover
