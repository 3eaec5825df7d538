#pragma once

#include <cstdint>

#include "codec/codec.h"
#include "comm/communicator.h"
#include "tensor/memory.h"

namespace heddle {

/// Itself, or a copy: codecs take f32 only.
Tensor as_f32(const Tensor& x, Memory& memory, Stream& stream);

/// y (any float) = the values of one piece.
void decode_to(const codec::Codec& codec, const Tensor& bytes, const Tensor& y, Memory& memory,
               Stream& stream);

/// `bytes` [pieces, bound], each of `values` values of a lossless codec, cut to what the largest of
/// all ranks' pieces needs; of other codecs as it is. Collective, and for lossless ones waits.
Tensor cut_to_used(const codec::Codec& codec, const Tensor& bytes, std::int64_t values,
                   Communicator& ranks, Memory& memory, Stream& stream);

}  // namespace heddle
