#pragma once

#include "mesh/mesh_shape.h"
#include "parallel/step/tell_step.h"

namespace heddle {

/// What the ranks of a site tell each other of their speed: a number each among the totals of a
/// step, so that it costs no call. These lie behind the usual totals, an optimizer's own behind
/// them (docs/design/054-stragglers.md).
class RankTimes {
 public:
  explicit RankTimes(const MeshShape& mesh) : ranks_(mesh.size(kStepAxes)) {}

  /// How many numbers there are: none where a rank is alone.
  int count() const { return ranks_ > 1 ? ranks_ : 0; }
  static constexpr int first() { return StepPolicy::kFirstOwn; }
  /// Where an optimizer's own totals begin.
  int behind() const { return first() + count(); }
  /// Where a rank of the mesh tells its own.
  int place_of(int rank) const { return first() + rank % ranks_; }
  /// Gives them room in the totals.
  void add_to(StepPolicy& policy) const { policy.sums[StepPolicy::kTotals].numbers += count(); }

 private:
  int ranks_;  // of a site
};

}  // namespace heddle
