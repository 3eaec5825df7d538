#pragma once

#include <cstdint>
#include <vector>

#include "model/decoder.h"

namespace heddle {

/// Cuts units of these costs into consecutive stages, one for each element of `rank_of_stage`. The
/// costliest stage is as cheap as can be; where that leaves a choice, as beside a large head, the
/// costliest rank is made cheaper, as far as moving single units between neighbours goes.
/// `slowness`: by rank, what its units cost in multiples of these; empty: the same on all.
std::vector<DecoderPart::Units> cut_stages(const std::vector<double>& costs,
                                           const std::vector<int>& rank_of_stage,
                                           const std::vector<double>& slowness = {});

/// Whether the last stage is one more of the first rank, and every other rank has one: where
/// micro-batches take routes.
bool comes_round(const std::vector<int>& rank_of_stage);

/// The same for the units of a model, by their work. A head that is divided over the pipeline
/// weighs nothing: every rank has its share. Where micro-batches take routes, the first rank has
/// the last stage too, which is final norm and head; the others have equal numbers of blocks, as
/// many as go, and the first rank what is left.
std::vector<DecoderPart::Units> cut_stages(const ModelSpec& spec, std::int64_t seq_len,
                                           VocabularyPlacement vocabulary,
                                           const std::vector<int>& rank_of_stage);

}  // namespace heddle
