#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"
#include "planner/candidate.h"
#include "planner/dry_block.h"
#include "planner/machine.h"
#include "planner/rank_sizes.h"

namespace heddle::planner {

/// Micro-batches that a rank has in flight, in units of its whole part of the model.
struct InFlight {
  double forward = 1;  ///< between forward and the gradient of the input
  double waiting = 0;  ///< whose gradients of the weights are still to be made
  double both = 1;     ///< the most at once, those that wait counting kWaitingWeight times
};

/// The peaks over all ranks when there are more than enough micro-batches. Schedules that do both
/// halves of backward at once by closed forms (Korthikanti et al. for interleaving), the others by
/// going through the schedule: allocates.
InFlight peaks_in_flight(Pipeline schedule, int pp, int chunks);

/// The same of each rank, by going through the schedule with as many micro-batches as there are.
std::vector<InFlight> in_flight_by_rank(const Schedule& schedule);

/// About what a block holds of a micro-batch that waits, over one that does not.
inline constexpr double kWaitingWeight = 1.6;

/// What each pipeline rank has of the model.
std::vector<RankPart> parts_by_rank(const Job& job, const Schedule& schedule,
                                    VocabularyPlacement vocabulary);

/// How blocks lie on the pipeline ranks, of all stages of a rank together.
struct Split {
  double most = 0;         ///< blocks of the rank that has most, apart from the one with the head
  double first = 0;        ///< of the rank with the embedding
  double last = 0;         ///< of the rank with the head
  bool ends_meet = false;  ///< one rank has both
  InFlight flying = {};
};

/// Stages as `make_plan` cuts them, or, for stacks that do not balance, as many blocks for each.
/// A vocabulary divided over the pipeline is no part of the last stage.
Split split_blocks(const Job& job, Pipeline schedule, int pp, int chunks,
                   VocabularyPlacement vocabulary = VocabularyPlacement::tensor);

/// Bytes that a block keeps of a micro-batch between forward and backward, on one rank of tp.
struct Activations {
  double kept_none = 0, kept_selective = 0, kept_full = 0;
  double waiting = 0;  ///< between the two halves of backward, when they are apart
  // Of the block that is being computed, what is never more than one block's:
  double working = 0;           ///< where it is recomputed
  double again = 0;             ///< what it then keeps once more
  double rows = 0;              ///< of its experts
  double messages = 0;          ///< of its attention over cp
  double head = 0;              ///< logits and what is made of them
  RankSizes::Block block = {};  ///< of parameters
  double inner_elements = 0;    ///< of them, those of inner matrices beside experts'

  double kept(Recompute recompute) const {
    return recompute == Recompute::full        ? kept_full
           : recompute == Recompute::selective ? kept_selective
                                               : kept_none;
  }
};

/// For Heddle from the layers' own `cost`, for Megatron by the formulas of Korthikanti et al.
Activations activations(const Job& job, const Candidate& candidate, const DryBlocks& dry);
/// The same for blocks that are made for it. Allocates.
Activations activations(const Job& job, const Candidate& candidate);

/// Korthikanti et al. 2022: bytes that a layer of Megatron keeps, s b h (34 + 5 a s / h) and its
/// variants. Selective recomputation drops the scores.
double megatron_layer_bytes(const ModelSpec& spec, double seq_len, double sequences, double tp,
                            bool sequence, Recompute recompute);

/// Bytes on a rank, by what they are for.
struct MemoryEstimate {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0, reserved = 0;
  double kept = 0;  ///< of the activations, what stays for backward

  double total() const { return parameters + gradients + optimizer + activations + reserved; }
};

/// The larger of the first rank (most in flight) and the last (logits), and never less than the
/// largest of `memory_by_rank`, which it equals for 1F1B. Allocates nothing.
MemoryEstimate estimate_memory(const Machine& machine, const Job& job, const Candidate& candidate,
                               const Split& split, const Activations& kept);

/// What every pipeline rank holds, by the same formulas and what the schedule has in flight there.
std::vector<MemoryEstimate> memory_by_rank(const Machine& machine, const Job& job,
                                           const Candidate& candidate);

}  // namespace heddle::planner
