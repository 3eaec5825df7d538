#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "model/config_testing.h"
#include "model/decoder.h"
#include "nn/layer_testing.h"
#include "support/source_dir.h"

namespace heddle {

inline ModelSpec reference_spec(const std::string& name) {
  return read_model_spec(source_dir() + "/tests/reference/models/" + name + "/config.json");
}

/// The first block of a model, built as a model builds it; of `mlp_tokens` at a time where it is
/// given.
inline LayerCase block_of(const std::string& family, const ModelSpec& spec, bool recompute,
                          bool documents = false, std::int64_t mlp_tokens = 0) {
  const auto make = [=](Memory& memory) {
    DecoderPart first_block;
    first_block.stages = {{1, 2}};
    BuildOptions options{.dtype = DType::f64, .positions = kSeqLen, .recompute_blocks = recompute};
    if (mlp_tokens > 0) options.mlp_tokens = mlp_tokens;
    return std::move(build_decoder(spec, options, memory, first_block).stages[0][0]);
  };
  std::string name = "BlockOf_" + family + (recompute ? "_recomputed" : "") +
                     (documents ? "_packed" : "") + (mlp_tokens > 0 ? "_in_chunks" : "");
  std::ranges::replace(name, '-', '_');
  return {.name = name,
          .make = make,
          .width = spec.hidden,
          .documents = documents,
          .weight_range = 0.4};
}

/// Of one of the project's references.
inline LayerCase block(const std::string& family, bool recompute = false, bool documents = false,
                       std::int64_t mlp_tokens = 0) {
  return block_of(family, reference_spec(family), recompute, documents, mlp_tokens);
}

/// Of one of the project's references, of which not everything trains.
inline LayerCase tuned_block(const std::string& family, const Tuning& tuning,
                             bool recompute = false, std::int64_t mlp_tokens = 0) {
  ModelSpec spec = reference_spec(family);
  spec.tuning = tuning;
  LayerCase made = block_of(family, spec, recompute, false, mlp_tokens);
  if (tuning.lora && tuning.lora->dropout > 0.0) made.name += "_dropped";
  made.name += tuning.lora ? "_adapted_" + std::to_string(tuning.lora->rank)
                           : "_frozen_" + std::to_string(tuning.freeze.front().size());
  return made;
}

/// Of the smallest config of a family.
inline LayerCase small_block(const std::string& family, bool recompute = false) {
  return block_of(family, spec_of(small_config(family)), recompute);
}

}  // namespace heddle
