#pragma once

#include "codec/codec.h"

// Codecs exist once per backend, as functions of the same names in the namespaces codec::cpu and
// codec::cuda; the public ones (codec.h) pick the backend by the device of their stream. A codec is
// a class with its parameters and sizes (block_int.h, ...), which both backends read.

#define HEDDLE_CODECS(X) X(Bf16) X(BlockInt) X(Fp8) X(E3m0) X(Sign) X(TopK) X(Zfp) X(Lossless)

namespace heddle::codec {

/// Encoding behind its checks: there are values, and the stream is not dry.
struct EncodeCall {
  const float* x;
  float* residual;  ///< or null
  std::byte* bytes;
  std::byte* workspace;
  std::int64_t* bad;
  std::int64_t values, piece;  ///< piece is above 0
  std::size_t piece_bytes;     ///< from the start of one to the start of the next
};

struct DecodeCall {
  const std::byte* bytes;
  std::size_t size_bytes;
  float* y;
  std::int64_t values;
  bool adds;
};

/// Encoding::bad holds kBadTop - index of the first value that is not finite: where several threads
/// find one, the largest number wins; 0 is none, so that zeros are a fresh start.
inline constexpr std::int64_t kBadTop = std::int64_t{1} << 62;

class Bf16;
class BlockInt;
class Fp8;
class E3m0;
class Sign;
class TopK;
class Zfp;
class Lossless;

#define HEDDLE_KERNELS(Name)                            \
  void encode(const Name&, const EncodeCall&, Stream&); \
  void decode(const Name&, const DecodeCall&, Stream&);
namespace cpu {
HEDDLE_CODECS(HEDDLE_KERNELS)
}  // namespace cpu
namespace cuda {
HEDDLE_CODECS(HEDDLE_KERNELS)
}  // namespace cuda
#undef HEDDLE_KERNELS

/// Hands calls to the kernels of the stream's device.
template <class Name>
class CodecOnDevices : public Codec {
  void run(const EncodeCall& call, Stream& stream) const final {
    const auto& codec = static_cast<const Name&>(*this);
    stream.device().kind == Device::Kind::cuda ? cuda::encode(codec, call, stream)
                                               : cpu::encode(codec, call, stream);
  }
  void run(const DecodeCall& call, Stream& stream) const final {
    const auto& codec = static_cast<const Name&>(*this);
    stream.device().kind == Device::Kind::cuda ? cuda::decode(codec, call, stream)
                                               : cpu::decode(codec, call, stream);
  }
};

/// A codec whose blocks have a size of their own: Name::block_bytes(values of one block).
template <class Name>
class BlockCodec : public CodecOnDevices<Name> {
 public:
  using Codec::encoded_bytes;
  std::size_t encoded_bytes(std::int64_t values) const final {
    const auto& codec = static_cast<const Name&>(*this);
    const std::int64_t block = codec.block(), rest = values % block;
    return static_cast<std::size_t>(values / block) * codec.block_bytes(block) +
           (rest > 0 ? codec.block_bytes(rest) : 0);
  }
};

}  // namespace heddle::codec
