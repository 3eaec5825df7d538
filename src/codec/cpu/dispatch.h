#pragma once

#include <hwy/highway.h>

#include "codec/kernels.h"

/// Defines encode and decode of a codec by those that a file compiled for every SIMD target, as
/// encode_NAME and decode_NAME; stands in namespace codec::cpu, once.
#define HEDDLE_DISPATCH_CODEC(Name, name)                                  \
  HWY_EXPORT(encode_##name);                                               \
  HWY_EXPORT(decode_##name);                                               \
  void encode(const Name& codec, const EncodeCall& call, Stream& stream) { \
    HWY_DYNAMIC_DISPATCH(encode_##name)(codec, call, stream);              \
  }                                                                        \
  void decode(const Name& codec, const DecodeCall& call, Stream& stream) { \
    HWY_DYNAMIC_DISPATCH(decode_##name)(codec, call, stream);              \
  }
