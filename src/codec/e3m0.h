#pragma once

#include "codec/kernels.h"

namespace heddle::codec {

/// "e3m0:256", the 4-bit floats of Streaming DiLoCo: blocks with a bf16 scale = largest magnitude,
/// rounded to nearest even, followed by 4 bits for each value: a sign (high) and the nearest of
/// 0, 2^-6, ..., 2^0 to |value| / scale (the lower of two that are equally near), which is at most
/// 1. Two codes to a byte, as those of int4.
class E3m0 final : public BlockCodec<E3m0> {
 public:
  explicit E3m0(std::int64_t block) : block_(block) {}

  std::string name() const override { return "e3m0:" + std::to_string(block_); }
  std::int64_t block() const override { return block_; }
  std::size_t block_bytes(std::int64_t values) const {
    return 2 + static_cast<std::size_t>((values + 1) / 2);
  }

 private:
  std::int64_t block_;
};

}  // namespace heddle::codec
