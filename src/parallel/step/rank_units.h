#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "comm/comm_op.h"
#include "mesh/axis.h"

namespace heddle {

/// What a rank holds, as far as the course of its steps depends on it. Made from a
/// rank's layers and their parameters (RankModel), for a run and, without memory, for a plan.
struct RankUnits {
  /// So many elements of a bucket's gradients are summed over these axes too.
  struct Sum {
    AxisSet over;
    std::int64_t elements = 0;
    bool operator==(const Sum&) const = default;
  };
  /// Parameters of one unit that lie in one flat buffer and are exchanged together.
  struct Bucket {
    int owner = 0;  ///< the unit that it belongs to
    /// The ranks that see other tokens, on axes that have several: gradients are summed over them.
    AxisSet over = {};
    int zero = 0;                ///< what those divide; 0 where there are none
    bool trains = true;          ///< false: frozen, there are no gradients and nothing is updated
    std::int64_t elements = 0;   ///< with padding
    std::int64_t held = 0;       ///< of those, what this rank has the optimizer's state of
    std::vector<Sum> sums = {};  ///< once a step, of what is held
    std::vector<std::int64_t> parts = {};  ///< of what is held, elements of each parameter
    /// Where gradients or values travel as a codec's bytes, those of one rank's part; 0: plainly.
    std::int64_t coded_gradients = 0, coded_values = 0;
    bool agrees_on_values = false;  ///< ranks first say how many bytes: at most `coded_values`
    bool operator==(const Bucket&) const = default;
  };
  /// A collective that layers make.
  struct Call {
    Axis over = Axis::tp;
    CommOp op = CommOp::all_reduce;
    std::int64_t bytes = 0;    ///< of the whole tensor
    std::int64_t payload = 0;  ///< that it stands for, where these are a codec's bytes
    bool operator==(const Call&) const = default;
  };
  struct Unit {
    std::vector<int> buckets = {};  ///< its own, and that of another unit that it shares
    bool adds_gradients_in_forward = false;
    int block = -1;  ///< the number of a block of the model
    /// In forward and in backward. Only in a plan: at run time the layers make them.
    std::vector<Call> in_f = {}, in_b = {};
    bool operator==(const Unit&) const = default;
  };
  /// A run of units.
  struct Stage {
    int first = 0, count = 0;
    bool operator==(const Stage&) const = default;
  };
  /// A table that is one tensor of the model and a parameter at either end of it: both are on this
  /// rank, or the other one is on the rank at the other end.
  enum class Tie : std::uint8_t { none, here, ends };

  /// What a group of ranks that see other tokens exchanges in a step whose gradients are not summed
  /// over them (StepPolicy::reduces).
  struct Joint {
    AxisSet over;
    std::int64_t vectors = 0;              ///< elements that are no matrices', summed plainly
    std::int64_t dealt = 0, gathered = 0;  ///< bytes of all matrices, encoded, there and back
    /// As Bucket::sums, of all elements: by bucket.
    std::vector<std::pair<int, Sum>> sums = {};
    bool operator==(const Joint&) const = default;
  };

  std::vector<Bucket> buckets;
  std::vector<Joint> joint = {};
  std::vector<Unit> units;
  std::vector<Stage> stages;      ///< by stage of the schedule; those of other ranks have no units
  int embedding = -1, head = -1;  ///< units of a vocabulary that is divided over the pipeline
  Tie tie = Tie::none;
  std::int64_t tied_elements = 0, tied_whole_elements = 0;  ///< what is held, and all

  bool operator==(const RankUnits&) const = default;
};

}  // namespace heddle
