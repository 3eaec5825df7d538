#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/hf_folder.h"
#include "model/spec.h"
#include "observe/terminal.h"
#include "parallel/param_store.h"

namespace heddle {

/// Error(data) names the tensor of a Hugging Face folder that is missing, has another shape or does
/// not belong to the model; adapters are not looked for. Known leftovers of old exports (mask
/// buffers, inverse frequencies, the alias of a tied head) are passed over. Takes no memory for
/// what the spec says.
void check_weights(const HfFolder& folder, const ModelSpec& spec);

/// Checks a folder, and fills every parameter but those of adapters from it, converting to the
/// store's dtype. Error(data) also names the tensor that holds NaN or infinity.
void load_weights(const HfFolder& folder, const ModelSpec& spec, ParamStore& store, Stream& stream,
                  const observe::Terminal& terminal = {});

/// Error(data) where a rank's box of tensor `name`, as it was read from `file`, holds NaN or
/// infinity.
void require_finite(const ParamPiece& piece, const Tensor& box, const std::string& name,
                    const std::filesystem::path& file, Stream& host);

}  // namespace heddle
