#pragma once

#include "model/config_reader.h"

namespace heddle {

/// The kind of GELU that a key names, by all names that transformers has for the two. Other
/// activations are refused.
ops::Gelu read_gelu(const ConfigReader& config, const std::string& key,
                    const std::string& by_default);

}  // namespace heddle
