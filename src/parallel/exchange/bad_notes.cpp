#include "parallel/exchange/bad_notes.h"

#include "codec/codec.h"
#include "ops/elementwise.h"

namespace heddle {

const Tensor& BadNotes::add() {
  return notes_.emplace_back(memory_.zeros({1}, DType::i64, MemoryTag::communication));
}

bool BadNotes::take(Stream& stream) {
  bool found = false;
  for (const Tensor& note : notes_) {
    if (!codec::first_bad(note, stream)) continue;
    found = true;
    Memory host = memory_.for_host();
    ops::copy(host.zeros({1}, DType::i64, MemoryTag::communication), note, stream);
  }
  return found;
}

}  // namespace heddle
