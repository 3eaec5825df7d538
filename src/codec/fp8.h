#pragma once

#include "codec/kernels.h"

namespace heddle::codec {

/// "fp8:128": blocks with a float32 scale = largest magnitude / 448, followed by value / scale as
/// e4m3 (sign, 4 bits of exponent with bias 7, 3 of mantissa; 448 is the largest, no infinities),
/// rounded to nearest even. Of a block of denormals not much is left, as with int8.
class Fp8 final : public BlockCodec<Fp8> {
 public:
  explicit Fp8(std::int64_t block) : block_(block) {}

  std::string name() const override { return "fp8:" + std::to_string(block_); }
  std::int64_t block() const override { return block_; }
  std::size_t block_bytes(std::int64_t values) const {
    return sizeof(float) + static_cast<std::size_t>(values);
  }

 private:
  std::int64_t block_;
};

}  // namespace heddle::codec
