// Codecs: any bytes decode to values, or are refused with an Error(peer); any values are encoded
// such that nothing is lost without a trace. The first byte chooses the codec and which of the two,
// the next two how many values.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "codec/registry.h"
#include "tensor/memory.h"

namespace {

using heddle::DType;
using heddle::Stream;
using heddle::Tensor;
using heddle::codec::Codec;

Tensor room(std::size_t count, DType dtype) {
  const Tensor t = heddle::Memory().alloc({static_cast<std::int64_t>(count)}, dtype,
                                          heddle::MemoryTag::workspace);
  std::fill_n(t.bytes(), t.size_bytes(), std::byte{0});
  return t;
}

void decode_anything(const Codec& codec, const std::uint8_t* data, std::size_t size,
                     std::size_t values, Stream& stream) {
  const std::size_t exact = codec.encoded_bytes(static_cast<std::int64_t>(values));
  const Tensor bytes = room(codec.is_lossless() ? size : exact, DType::u8);
  const Tensor y = room(values, DType::f32);
  std::copy_n(data, std::min(size, bytes.size_bytes()), bytes.data<std::uint8_t>());
  try {
    codec.decode(bytes, y, stream);
    codec.decode_add(bytes, y, stream);
  } catch (const heddle::Error& e) {
    if (e.code() != heddle::ErrorCode::peer) std::abort();
  }
}

void encode_anything(const Codec& codec, const std::uint8_t* data, std::size_t size,
                     std::size_t values, Stream& stream) {
  const auto n = static_cast<std::int64_t>(values);
  const Tensor x = room(values, DType::f32), y = room(values, DType::f32);
  const Tensor residual = codec.is_lossless() ? Tensor() : room(values, DType::f32);
  const Tensor bytes = room(codec.encoded_bytes(n), DType::u8), bad = room(1, DType::i64);
  std::copy_n(data, std::min(size, x.size_bytes()), reinterpret_cast<std::uint8_t*>(x.bytes()));
  codec.encode({.x = x,
                .residual = residual,
                .bytes = bytes,
                .bad = bad,
                .workspace = room(codec.workspace_bytes(n), DType::u8)},
               stream);
  codec.decode(bytes, y, stream);
  if (codec.is_lossless()) {
    if (values > 0 && std::memcmp(x.bytes(), y.bytes(), x.size_bytes()) != 0) std::abort();
    return;
  }
  const float *const from = x.data<float>(), *const back = y.data<float>();
  const bool is_finite = std::all_of(from, from + n, [](float v) { return std::isfinite(v); });
  if (heddle::codec::first_bad(bad, stream).has_value() == is_finite) std::abort();
  if (!is_finite) return;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(back[i]) || from[i] - back[i] != residual.data<float>()[i]) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const char* const kNames[] = {"bf16",     "int8:8",  "int4:8",   "fp8:8",
                                       "e3m0:8",   "sign",    "topk:3:8", "topk:5:64",
                                       "zfp:3:1",  "zfp:8:1", "zfp:7:5",  "zfp:8:4:truncate",
                                       "lossless", "int8",    "e3m0",     "zfp:32"};
  if (size < 3) return 0;
  const auto codec = heddle::codec::make_codec(kNames[data[0] % 16]);
  const std::size_t values = (data[1] + 256U * data[2]) % 3000;
  Stream stream(1);
  ((data[0] & 16) != 0 ? decode_anything : encode_anything)(*codec, data + 3, size - 3, values,
                                                            stream);
  return 0;
}
