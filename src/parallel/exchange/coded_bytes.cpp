#include "parallel/exchange/coded_bytes.h"

#include <algorithm>

#include "ops/cast.h"
#include "ops/elementwise.h"

namespace heddle {

Tensor as_f32(const Tensor& x, Memory& memory, Stream& stream) {
  const Tensor flat = x.view({x.count()});
  if (x.dtype() == DType::f32) return flat;
  const Tensor wide = memory.alloc(flat.shape(), DType::f32, MemoryTag::communication);
  ops::cast(flat, wide, stream);
  return wide;
}

void decode_to(const codec::Codec& codec, const Tensor& bytes, const Tensor& y, Memory& memory,
               Stream& stream) {
  const Tensor flat = y.view({y.count()});
  if (y.dtype() == DType::f32) return codec.decode(bytes, flat, stream);
  const Tensor wide = memory.alloc(flat.shape(), DType::f32, MemoryTag::communication);
  codec.decode(bytes, wide, stream);
  ops::cast(wide, flat, stream);
}

Tensor cut_to_used(const codec::Codec& codec, const Tensor& bytes, std::int64_t values,
                   Communicator& ranks, Memory& memory, Stream& stream) {
  if (!codec.is_lossless()) return bytes;
  Memory host = memory.for_host();
  const Tensor largest = host.alloc({1}, DType::f64, MemoryTag::communication);
  std::size_t own = 0;
  for (std::int64_t piece = 0; piece < bytes.size(0); ++piece) {
    const Tensor one = bytes.slice(0, piece, piece + 1).view({bytes.size(1)});
    own = std::max(own, codec.used_bytes(one, values, stream));
  }
  if (!stream.is_dry()) largest.host<double>()[0] = static_cast<double>(own);
  ranks.all_reduce(largest, ReduceOp::max, stream).wait(stream);
  const std::int64_t used =
      stream.is_dry() ? bytes.size(1) : static_cast<std::int64_t>(largest.host<double>()[0]);
  const Tensor cut = memory.alloc({bytes.size(0), used}, DType::u8, MemoryTag::communication);
  ops::copy(bytes.slice(1, 0, used), cut, stream);
  return cut;
}

}  // namespace heddle
