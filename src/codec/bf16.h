#pragma once

#include "codec/kernels.h"

namespace heddle::codec {

/// "bf16": the upper half of each float32, rounded to nearest even; what would round to infinity
/// becomes the largest finite value.
class Bf16 final : public BlockCodec<Bf16> {
 public:
  std::string name() const override { return "bf16"; }
  std::int64_t block() const override { return 1; }
  std::size_t block_bytes(std::int64_t values) const {
    return 2 * static_cast<std::size_t>(values);
  }
};

}  // namespace heddle::codec
