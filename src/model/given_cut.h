#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/decoder.h"

namespace heddle {

// Stages of a pipeline by numbers of blocks, as a run file gives them (parallel.cut): "5 3 4 4".

/// Error(usage) for what is no list of numbers.
std::vector<int> parse_cut(std::string_view text);
std::string text_of_cut(const std::vector<int>& blocks);

/// Why a model cannot be cut so over stages that lie on these ranks; empty: it can.
std::string problem_of_cut(const ModelSpec& spec, const std::vector<int>& blocks,
                           const std::vector<int>& rank_of_stage);

/// The first stage has the embedding too, the last final norm and head.
std::vector<DecoderPart::Units> units_of_cut(const ModelSpec& spec, const std::vector<int>& blocks);
/// The way back.
std::vector<int> blocks_of(const ModelSpec& spec, const std::vector<DecoderPart::Units>& stages);

}  // namespace heddle
