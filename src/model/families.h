#pragma once

#include "model/config_reader.h"
#include "model/spec.h"

namespace heddle {

// One function per family: the ModelSpec that a config.json of that family describes. What the
// config asks for and we do not do is refused by name. To add a family, write its file and name it
// in registry.cpp.

/// gemma2 and gemma3_text.
ModelSpec gemma_spec(const ConfigReader& config);
/// glm and glm4.
ModelSpec glm_spec(const ConfigReader& config);
ModelSpec gpt2_spec(const ConfigReader& config);
ModelSpec gpt_neox_spec(const ConfigReader& config);
ModelSpec granite_spec(const ConfigReader& config);
/// llama and mistral, and what all that are like it have in common.
ModelSpec llama_spec(const ConfigReader& config);
/// qwen2, qwen3 and qwen3_moe.
ModelSpec qwen_spec(const ConfigReader& config);
ModelSpec heddle_moe_spec(const ConfigReader& config);
ModelSpec mixtral_spec(const ConfigReader& config);
ModelSpec olmo2_spec(const ConfigReader& config);
ModelSpec olmoe_spec(const ConfigReader& config);
ModelSpec phi3_spec(const ConfigReader& config);
ModelSpec smollm3_spec(const ConfigReader& config);
ModelSpec starcoder2_spec(const ConfigReader& config);

}  // namespace heddle
