#pragma once

#include <deque>

#include "tensor/memory.h"
#include "tensor/stream.h"

namespace heddle {

/// Where encodings of a rank note values that are not finite (codec::Encoding::bad), so that a step
/// that met one is skipped by all ranks.
class BadNotes {
 public:
  /// `memory` outlives it.
  explicit BadNotes(Memory& memory) : memory_(memory) { add(); }

  /// Of everything that is encoded on the rank's own stream.
  const Tensor& own() const { return notes_.front(); }
  /// One for encodings on another stream or thread.
  const Tensor& add();
  /// Whether there are any; then they are forgotten. Waits for the stream.
  bool take(Stream& stream);

 private:
  Memory& memory_;
  std::deque<Tensor> notes_;
};

}  // namespace heddle
