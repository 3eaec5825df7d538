#pragma once

#include <vector>

#include "checkpoint/hf_folder.h"
#include "config/run_config.h"
#include "model/spec.h"
#include "train/run_tokenizer.h"

namespace heddle {

/// The small files of a run's checkpoints: config.json, which says the dtype that the weights are
/// stored in, or for adapters PEFT's adapter_config.json, and the tokenizer's. A run that goes on
/// with a model and its tokenizer keeps the files they came with; for another tokenizer they are
/// made, so that transformers opens the folder with it.
std::vector<TextFile> checkpoint_companions(const config::RunConfig& config, const ModelSpec& spec,
                                            const RunTokenizer& tokenizer, DType stored);

}  // namespace heddle
