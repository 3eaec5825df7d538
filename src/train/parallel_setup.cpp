#include "train/parallel_setup.h"

#include <array>

#include "base/error.h"

namespace heddle {

ParallelRequest parallel_request(const config::ParallelConfig& parallel) {
  static constexpr std::array<const char*, 8> kSchedules = {
      "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-min", "v-half"};
  if (parallel.vocabulary == config::Vocabulary::pipeline) {
    throw Error(ErrorCode::usage, "parallel.vocabulary = \"pipeline\" is not in this version",
                "use \"tensor\" or \"replicated\"");
  }
  return {.dp = static_cast<int>(parallel.dp),
          .tp = static_cast<int>(parallel.tp),
          .pp = static_cast<int>(parallel.pp),
          .zero = static_cast<int>(parallel.zero),
          .sequence = parallel.sequence,
          .vocabulary = parallel.vocabulary == config::Vocabulary::tensor
                            ? VocabularyOnTp::divided
                            : VocabularyOnTp::replicated,
          .schedule = kSchedules[static_cast<std::size_t>(parallel.schedule)],
          .chunks = static_cast<int>(parallel.chunks),
          .overlap = parallel.overlap};
}

}  // namespace heddle
