#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "model/decoder.h"
#include "model/registry.h"
#include "nn/layer_testing.h"

namespace heddle {

inline ModelSpec reference_spec(const std::string& name) {
  return read_model_spec(HEDDLE_SOURCE_DIR "/tests/reference/models/" + name + "/config.json");
}

/// A block of a family, built as a model builds it; of `mlp_tokens` at a time where it is given.
inline LayerCase block(const std::string& family, bool recompute = false, bool documents = false,
                       std::int64_t mlp_tokens = 0) {
  const auto make = [=](Memory& memory) {
    DecoderPart first_block;
    first_block.stages = {{1, 2}};
    BuildOptions options{.dtype = DType::f64, .positions = kSeqLen, .recompute_blocks = recompute};
    if (mlp_tokens > 0) options.mlp_tokens = mlp_tokens;
    return std::move(
        build_decoder(reference_spec(family), options, memory, first_block).stages[0][0]);
  };
  std::string name = "BlockOf_" + family + (recompute ? "_recomputed" : "") +
                     (documents ? "_packed" : "") + (mlp_tokens > 0 ? "_in_chunks" : "");
  std::ranges::replace(name, '-', '_');
  return {.name = name,
          .make = make,
          .width = reference_spec(family).hidden,
          .documents = documents,
          .weight_range = 0.4};
}

}  // namespace heddle
