#pragma once

#include <memory>
#include <vector>

#include "model/spec.h"
#include "nn/attention.h"

namespace heddle {

/// Angular frequencies of the rotated pairs after scaling, in float precision as the published
/// models were trained, for a sequence of so many tokens: dynamic and longrope have others for
/// sequences longer than the original ones.
std::vector<double> rope_frequencies(const RopeSpec& spec, std::int64_t length = 0);

/// Tables for positions [0, positions), at first for sequences so long. An absent spec gives absent
/// tables.
std::shared_ptr<const RopeTables> make_rope_tables(const std::optional<RopeSpec>& spec,
                                                   std::int64_t positions, DType dtype,
                                                   Memory& memory);

}  // namespace heddle
