#pragma once

#include <algorithm>
#include <numeric>

#include "codec/kernels.h"

namespace heddle::codec {

/// "zfp:8": ZFP of a fixed rate, in bits per value, with streams that are those of libzfp to the
/// bit. Values are rows of `columns`, cut into blocks of 4 x 4; "zfp:8:1" has one column and blocks
/// of 4 in a line. With 4 columns, the default, a block is 16 neighbours whatever the tensor's
/// shape. A last row that is not full goes on as ZFP continues a short line.
///
/// The decoder adds what truncation loses on the average (ZFP_ROUND_LAST), which makes errors
/// smaller and not add up over ranks; "zfp:8:4:truncate" leaves it out, as libzfp is built by
/// default. Values beside one that is 2^26 times larger or more are lost.
class Zfp final : public CodecOnDevices<Zfp> {
 public:
  Zfp(int rate, std::int64_t columns, bool truncates)
      : rate_(rate), columns_(columns), truncates_(truncates) {}

  std::string name() const override {
    return "zfp:" + std::to_string(rate_) + ":" + std::to_string(columns_) +
           (truncates_ ? ":truncate" : "");
  }
  bool truncates() const { return truncates_; }
  std::int64_t columns() const { return columns_; }
  bool is_line() const { return columns_ == 1; }
  /// Of a block of 4 or 16.
  int block_bits() const { return std::max(9, rate_ * (is_line() ? 4 : 16)); }
  /// Values of a row of blocks, and how many these are.
  std::int64_t row_values() const { return is_line() ? 4 : 4 * columns_; }
  std::int64_t row_blocks() const { return is_line() ? 1 : (columns_ + 3) / 4; }
  /// Rows of blocks up to a boundary of 64-bit words, of which streams are made.
  std::int64_t block() const override {
    return row_values() * (64 / std::gcd(row_blocks() * block_bits(), std::int64_t{64}));
  }
  using Codec::encoded_bytes;
  std::size_t encoded_bytes(std::int64_t values) const override {
    return static_cast<std::size_t>((blocks(values) * block_bits() + 63) / 64 * 8);
  }

 private:
  std::int64_t blocks(std::int64_t values) const {
    return (values + row_values() - 1) / row_values() * row_blocks();
  }

  int rate_;
  std::int64_t columns_;
  bool truncates_;
};

}  // namespace heddle::codec
