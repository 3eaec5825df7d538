#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::codec {

struct EncodeCall;  // kernels.h
struct DecodeCall;

/// What encode reads and writes; all of it lies on the stream's device.
struct Encoding {
  Tensor x;               ///< f32 [n]
  Tensor residual = {};   ///< f32 [n]: added to x before it is encoded, and then what was lost of
                          ///< the sum: residual' = (x + residual) - decoded, in float32. Absent:
                          ///< what is lost is forgotten
  Tensor bytes;           ///< u8 [encoded_bytes(n, piece)]
  Tensor bad;             ///< i64 [1]: zero, or what an earlier encode noted; see first_bad
  Tensor workspace = {};  ///< u8 [workspace_bytes(n)]; may be absent where that is 0
  /// Values that are encoded to be decoded together; n is cut into stretches of so many, whose
  /// bytes lie one behind the other (the last may be shorter). 0: all.
  std::int64_t piece = 0;
};

/// Turns float32 values into fewer bytes and back. What a codec is stands in its name ("int8:128"):
/// two of the same name write the same format on every device. Immutable and thread-safe.
///
/// Blocks: values are encoded in blocks of block(), a block's bytes depend on its values only, and
/// blocks lie one behind the other. So a tensor that is cut at multiples of block() gives, piece by
/// piece, the bytes of the whole; only the last block may be shorter. Where block() is 0 something
/// is shared by all values of a call: the scale of "sign", the table of "lossless".
///
/// Results do not depend on threads or instruction sets; everybody decodes the same bytes to the
/// same values.
class Codec {
 public:
  virtual ~Codec() = default;

  /// With all parameters: make_codec(name()) is this codec.
  virtual std::string name() const = 0;
  virtual std::int64_t block() const = 0;
  /// Nothing is lost, any bits are allowed (infinities, NaN with payload), there is no residual,
  /// and the size of the result depends on the values.
  virtual bool is_lossless() const { return false; }

  /// Bytes of `values` values: exactly so many, or where is_lossless() at most.
  virtual std::size_t encoded_bytes(std::int64_t values) const = 0;
  /// Of values cut into pieces (Encoding::piece).
  std::size_t encoded_bytes(std::int64_t values, std::int64_t piece) const;
  /// Of what encode wrote for one piece, those that have to be sent: all, or where is_lossless()
  /// as many as the bytes themselves say, for which it waits for the stream. On a dry stream all.
  virtual std::size_t used_bytes(const Tensor& /*bytes*/, std::int64_t values,
                                 Stream& /*stream*/) const {
    return encoded_bytes(values);
  }
  /// What encode needs beside its operands.
  virtual std::size_t workspace_bytes(std::int64_t /*values*/) const { return 0; }

  /// Values, or sums with residuals, that are not finite are noted in `bad` and not encoded, unless
  /// is_lossless(): some thousand values around them (of "sign" all) decode to zeros and keep their
  /// residuals. Nothing waits for a device, so it is up to the caller to look (first_bad) before
  /// results are used.
  void encode(const Encoding& operands, Stream& stream) const;
  /// y = the values of one piece. Throws Error(peer) when lossless bytes are damaged; others decode
  /// to something.
  void decode(const Tensor& bytes, const Tensor& y, Stream& stream) const;
  /// y += the values of one piece.
  void decode_add(const Tensor& bytes, const Tensor& y, Stream& stream) const;

 private:
  virtual void run(const EncodeCall& call, Stream& stream) const = 0;
  virtual void run(const DecodeCall& call, Stream& stream) const = 0;
  void decode(const Tensor& bytes, const Tensor& y, bool adds, Stream& stream) const;
};

/// The index of the first value that was not finite, if any encode noted one; waits for the stream.
/// Of several tensors that were encoded with the same `bad`, the smallest index.
std::optional<std::int64_t> first_bad(const Tensor& bad, Stream& stream);

/// Throws Error(data) that names `what` ("the gradient of lm_head.weight") if first_bad() finds
/// one.
void require_finite(const Tensor& bad, const Codec& codec, const std::string& what, Stream& stream);

}  // namespace heddle::codec
