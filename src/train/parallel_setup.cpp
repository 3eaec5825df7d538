#include "train/parallel_setup.h"

#include <array>
#include <string>

namespace heddle {

ParallelRequest parallel_request(const config::ParallelConfig& parallel) {
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
          .overlap = parallel.overlap};
}

}  // namespace heddle
