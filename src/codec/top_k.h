#pragma once

#include <bit>

#include "codec/kernels.h"

namespace heddle::codec {

/// "topk:64:4096": of each chunk of 4096 values the 64 of largest magnitude (of equal ones the
/// first), with an index of 12 bits and a value of 2; the others decode to zero. Chunks are powers
/// of two, and of a shorter one as large a share is kept, rounded up.
///
/// A chunk is: two bf16 magnitudes, the small and the large one; the indices, ascending, without
/// gaps between their bits; the values, four to a byte: 1 for the large magnitude, 2 for a minus.
/// Both streams of bits begin with the lowest bit of a byte. The magnitudes are those of the two
/// groups into which the kept values fall (Lloyd's algorithm, from their mean, kRounds rounds);
/// value i is added to sum i mod kLanes, and these in pairs, half of their number apart.
class TopK final : public BlockCodec<TopK> {
 public:
  static constexpr int kRounds = 4, kLanes = 32;
  static constexpr std::int64_t kMostKept = 4096, kLargestChunk = 65536;

  TopK(std::int64_t kept, std::int64_t chunk) : kept_(kept), chunk_(chunk) {}

  std::string name() const override {
    return "topk:" + std::to_string(kept_) + ":" + std::to_string(chunk_);
  }
  std::int64_t block() const override { return chunk_; }
  int index_bits() const { return std::countr_zero(static_cast<std::uint64_t>(chunk_)); }
  std::int64_t kept_of(std::int64_t values) const { return (values * kept_ + chunk_ - 1) / chunk_; }
  std::size_t index_bytes(std::int64_t kept) const {
    return static_cast<std::size_t>((kept * index_bits() + 7) / 8);
  }
  std::size_t block_bytes(std::int64_t values) const {
    const std::int64_t kept = kept_of(values);
    return 4 + index_bytes(kept) + static_cast<std::size_t>((kept + 3) / 4);
  }

 private:
  std::int64_t kept_, chunk_;
};

}  // namespace heddle::codec
