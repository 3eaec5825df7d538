#pragma once

#include <vector>

#include "checkpoint/hf_folder.h"
#include "config/run_config.h"
#include "model/spec.h"
#include "train/run_tokenizer.h"

namespace heddle {

/// The class by which transformers opens any tokenizer.json as it is.
inline constexpr const char* kAnyTokenizer = "PreTrainedTokenizerFast";

/// A tokenizer_config.json, for a tokenizer.json that has none. `longest`: tokens that the model
/// takes.
std::string tokenizer_config(const Tokenizer& tokenizer, const SpecialTokens& tokens,
                             std::int64_t longest);

/// The small files of a run's checkpoints: config.json, which says the dtype that the weights are
/// stored in, or for adapters PEFT's adapter_config.json, and the tokenizer's. A run that goes on
/// with a model and its tokenizer keeps the files they came with. Another tokenizer brings what
/// lies beside it (tokenizer_config.json, a chat template); what is missing is made, so that
/// transformers opens the folder with it and generation ends where documents did.
std::vector<TextFile> checkpoint_companions(const config::RunConfig& config, const ModelSpec& spec,
                                            const RunTokenizer& tokenizer, DType stored);

}  // namespace heddle
