#pragma once

#include "codec/kernels.h"

namespace heddle::codec {

/// "int8:128", "int4:128": blocks with a float32 scale = largest magnitude / (2^(bits-1) - 1),
/// followed by a signed code for each value: nearest (ties to even) of value / scale. Codes of 4
/// bits lie two to a byte: of m values, byte i has value i in its low half and value
/// i + ceil(m / 2) in its high half.
///
/// The scale is at least the smallest normal number: of a block of denormals not much is left.
class BlockInt final : public BlockCodec<BlockInt> {
 public:
  BlockInt(int bits, std::int64_t block) : bits_(bits), block_(block) {}

  int bits() const { return bits_; }
  int largest_code() const { return (1 << (bits_ - 1)) - 1; }
  std::string name() const override {
    return "int" + std::to_string(bits_) + ":" + std::to_string(block_);
  }
  std::int64_t block() const override { return block_; }
  std::size_t block_bytes(std::int64_t values) const {
    return sizeof(float) + static_cast<std::size_t>((values * bits_ + 7) / 8);
  }

 private:
  int bits_;
  std::int64_t block_;
};

}  // namespace heddle::codec
