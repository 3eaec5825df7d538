#pragma once

#include <cstdint>
#include <span>

#include "data/sampler.h"
#include "data/token_file.h"

namespace heddle {

/// A target that does not count in the loss; the value of ops::kIgnoreTarget.
inline constexpr std::int32_t kIgnoredTarget = -100;

/// What a window does about the documents it spans.
enum class DocumentMode {
  mask,    ///< attention, positions and targets stay inside documents
  ignore,  ///< a window is one text
};

/// One row of a batch, to be filled; all spans have seq_len elements.
struct WindowRow {
  std::span<std::int32_t> ids;
  std::span<std::int32_t> targets;    ///< the next token, or kIgnoredTarget
  std::span<std::int32_t> positions;  ///< count from the start of the document, or of the window
  std::span<std::int32_t> first_key;  ///< index in the row of the document's first token
};

/// Fills `row` with the tokens of `file` from `begin` on; no token at or after `end` is read. Where
/// fewer than seq_len + 1 tokens are left, the row is padded: id 0, ignored target, a document of
/// its own. With DocumentMode::mask the last token of a document has an ignored target, because
/// what follows it cannot be known from it. In a file with answers other targets are ignored, too.
/// A document that began before the window counts from
/// the window's start. Returns how many targets count.
std::int64_t pack_window(const TokenFile& file, std::int64_t begin, std::int64_t end,
                         DocumentMode mode, const WindowRow& row);

}  // namespace heddle
