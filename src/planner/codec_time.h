#pragma once

#include "codec/codec.h"
#include "planner/machine.h"

namespace heddle::planner {

/// Seconds that a rank's device takes to encode or decode so many values: by the machine file's
/// rates of the codec, or of the same codec with other parameters, or else as long as the memory
/// takes to move what must be read and written, which is a lower bound. Null codecs take no time.
double encode_seconds(const Machine& machine, const codec::Codec* codec, double values,
                      bool keeps_residual = false);
double decode_seconds(const Machine& machine, const codec::Codec* codec, double values);

}  // namespace heddle::planner
