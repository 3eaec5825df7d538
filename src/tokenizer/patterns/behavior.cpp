#include "tokenizer/patterns/behavior.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/section.h"

namespace heddle {
namespace {

std::vector<std::string_view> merged_with_next(const std::vector<TextPart>& parts) {
  std::vector<std::string_view> pieces;
  bool previous = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->second && !previous && !pieces.empty()) {
      pieces.back() = {part->first.data(), part->first.size() + pieces.back().size()};
    } else {
      pieces.push_back(part->first);
    }
    previous = part->second;
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

/// Contiguous, or merged with what precedes.
std::vector<std::string_view> merged_forward(const std::vector<TextPart>& parts, bool contiguous) {
  std::vector<std::string_view> pieces;
  bool previous = false;
  for (const auto& [text, is_delimiter] : parts) {
    const bool joins = contiguous ? is_delimiter == previous : is_delimiter && !previous;
    if (joins && !pieces.empty()) {
      pieces.back() = {pieces.back().data(), pieces.back().size() + text.size()};
    } else {
      pieces.push_back(text);
    }
    previous = is_delimiter;
  }
  return pieces;
}

}  // namespace

SplitBehavior read_behavior(const Section& step) {
  const std::string& name = step.string("behavior");
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  step.refuse(fmt::format("behavior {}", name));
}

SplitBehavior read_behavior(const Section& step, SplitBehavior otherwise) {
  return step.find("behavior") == nullptr ? otherwise : read_behavior(step);
}

void for_each_piece(const std::vector<TextPart>& parts, SplitBehavior behavior,
                    FunctionRef<void(std::string_view)> sink) {
  if (behavior == SplitBehavior::isolated || behavior == SplitBehavior::removed) {
    for (const auto& [text, is_delimiter] : parts) {
      if (!text.empty() && !(is_delimiter && behavior == SplitBehavior::removed)) sink(text);
    }
    return;
  }
  for (const auto piece : behavior == SplitBehavior::merged_with_next
                              ? merged_with_next(parts)
                              : merged_forward(parts, behavior == SplitBehavior::contiguous)) {
    if (!piece.empty()) sink(piece);
  }
}

}  // namespace heddle
