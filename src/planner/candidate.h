#pragma once

#include <cstdint>

#include "model/decoder.h"
#include "parallel/compression.h"
#include "parallel/parallel_request.h"
#include "parallel/step/outer_policy.h"
#include "parallel/step/sum_windows.h"
#include "planner/updates.h"
#include "tensor/dtype.h"

namespace heddle::planner {

enum class Recompute : std::uint8_t { none, selective, full };
const char* name_of(Recompute recompute);

/// The software whose steps are predicted: what its layers store and launch.
struct Stack {
  DType compute = DType::bf16;
  double parameter_bytes = 2, gradient_bytes = 4;
  double state_bytes = 12, inner_state_bytes = 12;  ///< of the blocks' matrices: the latter
  Updates updates = Updates::adamw;
  int newton_schulz_steps = 5;   ///< of muon, for each matrix
  bool stores_scores = false;    ///< attention keeps its score matrix; and there is dropout
  bool regathers = false;        ///< sequence parallelism gathers once more in backward
  bool balances_stages = true;   ///< stages are cut by cost; otherwise all have as many blocks
  bool splits_messages = false;  ///< tp ranks send a share each and gather it behind
  bool overlaps_gathers = true;  ///< ZeRO-3 fetches a block while the one before computes
  bool head_in_forward = true;   ///< the loss head makes its gradients at once (design/005)
  bool sums_targets = true;      ///< ranks count the targets of a step before they begin it
  double kernels_forward = 10, kernels_backward = 16;    ///< of a block, beside matrix products
  double launches_forward = 16, launches_backward = 26;  ///< of a block, all
  std::int64_t loss_chunk = 0;  ///< tokens per chunk of the output projection; 0: the usual
  double host_fraction = 0.15;  ///< of the host's time per launch in a PyTorch program

  /// Heddle itself, in this dtype.
  static Stack heddle(DType compute, Updates updates = Updates::adamw);
  /// Megatron-LM and DeepSpeed in 16 bits before flash attention: what the measured tables were
  /// made with.
  static Stack megatron();

  double element_bytes() const { return static_cast<double>(size_of(compute)); }
  /// Of an element of a gradient that travels.
  double sent_gradient_bytes() const { return stores_scores ? 2.0 : gradient_bytes; }
  /// The optimizer works on these (matrix_work.h).
  bool whole_matrices() const { return updates == Updates::muon; }
  /// Ranks exchange signs of the momentum in place of gradients. Steps are those behind the
  /// warm-up; until then they are adamw's.
  bool sends_signs() const { return updates == Updates::onebit_adam; }
  /// Bytes of memory that an element moves through when it is encoded twice and decoded.
  static constexpr double kSigningBytes = 52;
  /// Where its layers compute: bf16 is computed in on GPUs only.
  heddle::Device place() const;
};

/// What is to be trained.
struct Job {
  ModelSpec spec;
  std::int64_t seq_len = 2048;
  std::int64_t batch = 1;  ///< sequences per optimizer step, all ranks (of a site) together
  Stack stack = {};
  Compression compress = {};
  OuterPolicy outer = {};   ///< of sites, of which each does such a job: Candidate::sites
  SumWindows windows = {};  ///< of sums of gradients, where they were planned

  std::int64_t loss_chunk() const {
    return stack.loss_chunk > 0 ? stack.loss_chunk : usual_loss_chunk(spec, stack.place());
  }
};

/// One way to lay a job out: `dp` is said, and where cp is above 1, the method.
struct Candidate : ParallelRequest {
  Recompute recompute = Recompute::none;
  int sequences = 1;  ///< of a micro-batch

  int gpus() const { return static_cast<int>(ranks()); }
  /// Ranks that see other tokens: gradients are summed over them, state is divided among them.
  int token_ranks() const { return dp * cp; }
  /// Ranks that see other tokens for the same experts, where experts are divided.
  int expert_token_ranks() const { return token_ranks() * tp / (ep * etp); }
  /// Tokens of a micro-batch that a rank has; the mean, where they cannot be divided evenly.
  double tokens(const Job& job) const { return static_cast<double>(sequences * job.seq_len) / cp; }
  std::int64_t microbatches(const Job& job) const { return job.batch / dp / sequences; }
};

}  // namespace heddle::planner
