#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/hf_folder_writer.h"
#include "engine/model.h"
#include "ops/elementwise.h"

namespace heddle {

using Tensors = std::map<std::string, Tensor>;

/// All tensors of a model of random weights.
inline Tensors random_weights(const ModelSpec& spec, Memory& memory) {
  Stream stream(1);
  Model model(spec, {.positions = 8}, ParamStore::Purpose::inference, memory);
  initialize(model.store(), 3, stream);
  Tensors tensors;
  for (const ParamPiece& piece : model.store().value_pieces()) {
    const Tensor copy = memory.alloc(piece.data.shape(), DType::f32, MemoryTag::data);
    ops::copy(piece.data, copy, stream);
    tensors[piece.part->name] = copy;
  }
  return tensors;
}

/// Experts' tensors put into one for all of a layer, as transformers 5 holds them.
inline Tensors stacked(const ModelSpec& spec, Tensors tensors, Memory& memory) {
  Stream stream(1);
  const ExpertsSpec& experts = *spec.experts;
  const std::int64_t E = experts.count, F = experts.width, D = spec.hidden;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const auto named = [&](const std::string& pattern) {
      return fmt::format(fmt::runtime(pattern), layer);
    };
    const Tensor ups = memory.alloc({E, 2 * F, D}, DType::f32, MemoryTag::data),
                 downs = memory.alloc({E, D, F}, DType::f32, MemoryTag::data);
    for (std::int64_t expert = 0; expert < E; ++expert) {
      const auto move = [&](const std::string& pattern, const Tensor& to) {
        const std::string name = fmt::format(fmt::runtime(pattern), layer, expert) + ".weight";
        ops::copy(tensors.at(name), to, stream);
        tensors.erase(name);
      };
      move(experts.gate, ups.select(0, expert).slice(0, 0, F));
      move(experts.up, ups.select(0, expert).slice(0, F, 2 * F));
      move(experts.down, downs.select(0, expert));
    }
    tensors[named(experts.stacked_up)] = ups;
    tensors[named(experts.stacked_down)] = downs;
    const Tensor router = tensors.at(named(experts.router) + ".weight");
    tensors.erase(named(experts.router) + ".weight");
    tensors[named(experts.stacked_router)] = router;
  }
  return tensors;
}

inline void write(const Tensors& tensors, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    const auto sizes = tensor.shape().sizes();
    specs.push_back(
        {name, std::string(safetensors_name_of(tensor.dtype())), {sizes.begin(), sizes.end()}});
  }
  HfFolderWriter writer(real_file_system(), folder, specs);
  for (const TensorSpec& spec : writer.order()) writer.append(spec.name, tensors.at(spec.name));
  writer.finish();
}

}  // namespace heddle
