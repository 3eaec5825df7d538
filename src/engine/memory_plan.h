#pragma once

#include "model/decoder.h"
#include "model/spec.h"
#include "tensor/memory.h"

namespace heddle {

/// The memory of a training step: what `Memory` will have handed out at the peak, by tag.
struct MemoryPlan {
  BytesByTag at_peak{};
  std::size_t peak = 0;
  std::size_t reserved = 0;  ///< held from the system, blocks kept for reuse included
};

/// Found by running the step's own code on a dry stream and a dry memory: nothing is computed and
/// nothing touched, but every allocation is made in its place, so prediction and engine cannot
/// drift apart.
MemoryPlan plan_training_memory(const ModelSpec& spec, const BuildOptions& options,
                                std::int64_t sequences, std::int64_t seq_len, int microbatches);

}  // namespace heddle
