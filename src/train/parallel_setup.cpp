#include "train/parallel_setup.h"

#include <array>
#include <string>

#include "train/model_setup.h"

namespace heddle {

ParallelRequest parallel_request(const config::RunConfig& config) {
  const config::ParallelConfig& parallel = config.parallel;
  static constexpr std::array<VocabularyPlacement, 3> kPlacements = {
      VocabularyPlacement::replicated, VocabularyPlacement::tensor, VocabularyPlacement::pipeline};
  return {.dp = static_cast<int>(parallel.dp),
          .tp = static_cast<int>(parallel.tp),
          .pp = static_cast<int>(parallel.pp),
          .zero = static_cast<int>(parallel.zero),
          .sequence = parallel.sequence,
          .vocabulary = kPlacements[static_cast<std::size_t>(parallel.vocabulary)],
          .vocabulary_algorithm = static_cast<int>(parallel.vocabulary_algorithm),
          .schedule = std::string(name_of(parallel.schedule)),
          .chunks = static_cast<int>(parallel.chunks),
          .overlap = parallel.overlap,
          .whole_matrices = needs_whole_matrices(optimizer_config(config.optim))};
}

}  // namespace heddle
