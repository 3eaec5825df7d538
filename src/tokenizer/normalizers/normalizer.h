#pragma once

#include <memory>
#include <string>
#include <vector>

namespace heddle {

class Section;

/// A text that is being normalised.
struct NormalText {
  std::string text;
  bool at_start = true;    ///< its first character comes of the first one of the original text
  bool continues = false;  ///< it goes on with one before it, of which it was cut off
};

/// One step of normalisation. Bytes that are not valid UTF-8 pass through unchanged. Immutable and
/// thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalText& text) const = 0;
  /// Of a text that is cut before a single space between letters of ASCII, both parts become what
  /// they do in the whole, the later one being told that it continues.
  virtual bool is_local_at_spaces() const { return false; }
};

using NormalizerList = std::vector<std::unique_ptr<const Normalizer>>;

/// Appends what `stage` (for_steps) asks for. A kind that is not known is refused by
/// name with Error(data).
void add_normalizer(const Section& stage, NormalizerList& list);

}  // namespace heddle
