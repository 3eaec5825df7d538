#pragma once

#include "codec/kernels.h"

namespace heddle::codec {

/// "sign": a float32 scale = mean magnitude of all values of the call (of the tensor, that is),
/// then a bit for each value, set where it is not negative (zero counts as positive), the first in
/// the lowest bit of a byte. Values decode to plus or minus scale. When a tensor is cut into
/// pieces, each begins with the scale of the whole.
///
/// The scale is the least-squares one, so compression never makes a tensor longer, which that of
/// 1-bit Adam's authors, the root of the mean square, can do.
class Sign final : public CodecOnDevices<Sign> {
 public:
  /// Values whose magnitudes are added up by themselves: value i to the sum i mod kLanes, and these
  /// sums in pairs, half of their number apart. The sums of tiles then in the same way.
  static constexpr std::int64_t kTile = 4096;
  static constexpr int kLanes = 16, kTileLanes = 256;

  std::string name() const override { return "sign"; }
  std::int64_t block() const override { return 0; }
  using Codec::encoded_bytes;
  std::size_t encoded_bytes(std::int64_t values) const override {
    return values == 0 ? 0 : sizeof(float) + static_cast<std::size_t>((values + 7) / 8);
  }
  /// A sum (f64) for each tile.
  std::size_t workspace_bytes(std::int64_t values) const override {
    return sizeof(double) * static_cast<std::size_t>((values + kTile - 1) / kTile);
  }
};

}  // namespace heddle::codec
