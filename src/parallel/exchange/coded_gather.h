#pragma once

#include "codec/codec.h"
#include "comm/communicator.h"
#include "tensor/memory.h"

namespace heddle {

/// Gathers tensors from the ranks of a group as a codec's bytes
/// (docs/design/035-compressed-exchanges.md): each part is encoded once, where it is, and all ranks
/// decode the same bytes, also the one whose part it is. So all have the same values, with the
/// error of one encoding. All ranks make the same calls in the same order.
class CodedGather {
 public:
  /// All of them outlive it and what it began. `value_bytes`: of a value that is gathered, for
  /// counts.
  CodedGather(const codec::Codec& codec, Communicator& ranks, Memory& memory,
              std::int64_t value_bytes);

  class [[nodiscard]] Pending {
   public:
    /// whole = all parts in the order of ranks, for what comes behind on the stream; f32 or a lower
    /// precision.
    void end(const Tensor& whole, Stream& stream) const;

   private:
    friend class CodedGather;
    const codec::Codec* codec_ = nullptr;
    Memory* memory_ = nullptr;
    Work work_;
    Tensor sent_, all_;
    std::int64_t pieces_ = 0;
  };

  /// `part` (any float) may change once this returns. `bad`: codec::Encoding.
  Pending begin(const Tensor& part, const Tensor& bad, Stream& stream) const;

 private:
  const codec::Codec& codec_;
  Communicator& ranks_;
  Memory& memory_;
  const std::int64_t value_bytes_;
};

}  // namespace heddle
