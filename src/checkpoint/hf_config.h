#pragma once

#include <optional>
#include <string>

#include "tensor/dtype.h"

namespace heddle {

// What a config.json says about the weights beside it. `config` is its text; `where` names the file
// in the Error(data) for one that is no JSON object.

/// The config with the dtype that the weights have, under "dtype" and "torch_dtype", whichever is
/// there ("torch_dtype" where neither is: all readers know it). The same text where it says so
/// already.
std::string config_with_dtype(const std::string& config, DType dtype, const std::string& where);

/// How the weights are quantized ("fp8", say), where the config says that they are.
std::optional<std::string> quantization_of(const std::string& config, const std::string& where);

}  // namespace heddle
