#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "checkpoint/hf_folder.h"
#include "checkpoint/safetensors.h"
#include "comm/world.h"
#include "engine/train_step.h"
#include "engine/weights.h"
#include "model/registry.h"
#include "verify/shared_files.h"

namespace heddle {

/// What torch.optim made of a model in ten batches: tests/reference/optimizers/MODEL.safetensors.
struct OptimizerCase {
  const char* model;
  const char* name;
  OptimizerConfig config;
  double lr;
};

inline const OptimizerCase kSgdNesterov{
    "llama", "sgd-nesterov", SgdConfig{.momentum = 0.9, .nesterov = true, .weight_decay = 0.1},
    0.05};
inline const OptimizerCase kSgdDampened{
    "gpt2", "sgd-dampened", SgdConfig{.momentum = 0.8, .dampening = 0.3, .weight_decay = 0.1}, 0.1};
/// With 0.01 for the matrices.
inline const MuonConfig kOriginalMuon{.lr_ratio = 10.0, .scale = MuonConfig::Scale::original};
inline const OptimizerCase kMuon{"llama", "muon", kOriginalMuon, 1e-3};
/// The same, where torch was made to multiply in float32, as a CPU does here.
inline const OptimizerCase kMuonInFloat32{"llama", "muon-f32", kOriginalMuon, 1e-3};
inline const OptimizerCase kPlainMuon{"gpt2", "muon-plain",
                                      MuonConfig{.momentum = 0.9, .nesterov = false}, 3e-4};

/// Between our ten steps and torch's.
struct TenSteps {
  double loss = 0.0;     ///< the largest difference of a loss
  double element = 0.0;  ///< of an element of the weights afterwards
  double tensor = 0.0;   ///< of a tensor: the norm of the difference over its norm
  std::string worst;     ///< that tensor
};

/// On one rank's part of a mesh; each rank has its own answer.
inline TenSteps ten_steps(const OptimizerCase& of, const ParallelRequest& request, World& world,
                          Device device = {}, DType dtype = DType::f32) {
  const auto folder = reference_folder() / "models" / of.model;
  const SafetensorsFile reference(folder / "reference.safetensors");
  const SafetensorsFile expected(reference_folder() / "optimizers" /
                                 (std::string(of.model) + ".safetensors"));
  Memory memory(device), host = memory.for_host();
  Stream stream(1, device);
  const ModelSpec spec = read_model_spec(folder / "config.json");
  const Shape batches = reference.entry("train.input_ids").shape();
  const ParallelPlan plan =
      make_plan(spec, request, world.size(), batches[2], needs_whole_matrices(of.config));
  const Mesh mesh(plan.mesh, world.all());
  Model model(spec, {.dtype = dtype, .positions = batches[2]}, plan, mesh,
              ParamStore::Purpose::training, memory);
  const auto optimizer = make_optimizer(of.config, model.store());
  load_weights(HfFolder(folder), spec, model.store(), stream);
  TrainStep step(model, *optimizer, stream, memory);

  const auto numbers = [&](const SafetensorsFile& file, const std::string& name, DType type) {
    const Tensor made = host.alloc(file.entry(name).shape(), type, MemoryTag::workspace);
    file.read(name, made);
    return made;
  };
  const Tensor inputs = numbers(reference, "train.input_ids", DType::i64);
  const Tensor labels = numbers(reference, "train.labels", DType::i64);
  const std::string prefix = std::string(of.name) + ".";
  const Tensor losses = numbers(expected, prefix + "loss", DType::f32);
  const auto sequence = [&](const Tensor& all, std::int64_t batch, std::int64_t row) {
    const Tensor ids = host.alloc({1, batches[2]}, DType::i32, MemoryTag::data);
    std::ranges::transform(all.select(0, batch).slice(0, row, row + 1).host<std::int64_t>(),
                           ids.host<std::int32_t>().begin(),
                           [](std::int64_t id) { return static_cast<std::int32_t>(id); });
    return ids;
  };
  TenSteps result;
  const std::int64_t rows = batches[1] / mesh.size(Axis::dp);
  for (std::int64_t i = 0; i < batches[0]; ++i) {
    std::vector<MicroBatch> own;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = mesh.coord(Axis::dp) * rows + row;
      own.push_back(plain_batch(sequence(inputs, i, at), sequence(labels, i, at), 0, host));
    }
    const double loss = step.run(own, {.lr = of.lr, .step = i + 1}, 1.0).loss;
    const double want = losses.host<float>()[static_cast<std::size_t>(i)];
    result.loss = std::max(result.loss, std::abs(loss - want));
  }
  for (const ParamPiece& piece : model.store().value_pieces()) {
    const std::string name = prefix + "trained." + piece.part->name;
    if (std::ranges::none_of(expected.entries(),
                             [&](const auto& entry) { return entry.name == name; })) {
      continue;
    }
    const Tensor want = host.alloc(piece.data.shape(), DType::f32, MemoryTag::workspace);
    expected.read_slice(name, piece.begin.sizes(), piece.end().sizes(), want);
    const Tensor have = on_host(piece, stream);
    double squares = 0.0, norm = 0.0;
    for (std::int64_t row = 0; row < want.count() / want.size(-1); ++row) {
      const float* const ours = have.data<float>() + (have.dims() > 1 ? row * have.stride(0) : 0);
      const float* const theirs = want.data<float>() + row * want.size(-1);
      for (std::int64_t i = 0; i < want.size(-1); ++i) {
        const double difference = static_cast<double>(ours[i]) - theirs[i];
        result.element = std::max(result.element, std::abs(difference));
        squares += difference * difference;
        norm += static_cast<double>(theirs[i]) * theirs[i];
      }
    }
    if (std::sqrt(squares / norm) <= result.tensor) continue;
    result.tensor = std::sqrt(squares / norm);
    result.worst = name;
  }
  return result;
}

}  // namespace heddle
