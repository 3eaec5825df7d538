#pragma once

#include <cstdint>
#include <vector>

namespace heddle {

class Section;

/// What post-processors put around a text.
struct Surroundings {
  std::vector<std::int32_t> before, after;
};

/// Reads `stage` (for_steps) and adds what it puts outside of what earlier ones do.
/// `vocab_size` bounds the ids. A kind that is not known is refused by name with Error(data).
void add_post_processor(const Section& stage, std::size_t vocab_size, Surroundings& around);

}  // namespace heddle
