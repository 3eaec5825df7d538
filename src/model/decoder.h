#pragma once

#include <memory>
#include <vector>

#include "model/spec.h"
#include "nn/layer.h"
#include "nn/loss_head.h"

namespace heddle {

struct BuildOptions {
  DType dtype = DType::f32;
  std::int64_t positions = 0;  ///< longest sequence that will be run; rope tables are made for it
  bool recompute_blocks = false;
  std::int64_t loss_chunk = 1024;  ///< tokens per chunk of the fused output projection
  bool scale_residual_init =
      false;  ///< output projections start smaller by sqrt(2 * layers), as in GPT-2
};

/// A decoder as the list of its units: embedding, blocks, final norm, head.
struct Decoder {
  std::vector<std::unique_ptr<Layer>> units;
  LossHead* head = nullptr;  ///< the last unit

  std::vector<Layer*> unit_pointers() const;
};

/// Builds the layers; parameters are described but have no memory yet (ParamStore gives it).
Decoder build_decoder(const ModelSpec& spec, const BuildOptions& options, Memory& memory);

}  // namespace heddle
