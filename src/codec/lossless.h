#pragma once

#include "codec/kernels.h"

namespace heddle::codec {

/// "lossless": what can be saved without losing a bit. Gradients have random mantissas, but
/// exponents that lie close together.
///
/// Blocks of 1024 values, behind a table (u32) of where each ends, in words of 4 bytes from the
/// start of the piece. A block of m values is:
///
///     u8   base      the largest exponent
///     u8   bits 0-2: width w; bits 4-6: which of the byte planes below are there
///     u16  rare      how many exponents stand by themselves
///     up to 3 planes of m bytes: low and middle byte of the mantissas, sign (high bit) with the
///          rest of the mantissa. A plane of zeros is left out: so bf16 values cost half
///     w planes of ceil(m / 8) bytes: the bits of base - exponent, lowest plane and value first;
///     all
///          set for exponents further below than that
///     the exponents of those, a byte each
///     zeros up to a multiple of 4
///
/// w is what makes the block smallest; with w = 0 all exponents stand by themselves.
class Lossless final : public CodecOnDevices<Lossless> {
 public:
  static constexpr std::int64_t kBlock = 1024;
  static constexpr std::size_t kHeaderBytes = 4;

  std::string name() const override { return "lossless"; }
  std::int64_t block() const override { return 0; }
  bool is_lossless() const override { return true; }
  std::int64_t blocks(std::int64_t values) const { return (values + kBlock - 1) / kBlock; }
  std::size_t table_bytes(std::int64_t values) const {
    return 4 * static_cast<std::size_t>(blocks(values));
  }
  using Codec::encoded_bytes;
  std::size_t encoded_bytes(std::int64_t values) const override {
    return table_bytes(values) + kHeaderBytes * static_cast<std::size_t>(blocks(values)) +
           4 * static_cast<std::size_t>(values);
  }
  std::size_t used_bytes(const Tensor& bytes, std::int64_t values, Stream& stream) const override;
  /// Error(peer): bytes are not what it writes.
  [[noreturn]] void refuse_damaged() const;
};

}  // namespace heddle::codec
