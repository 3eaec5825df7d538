#include "engine/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "checkpoint/model_source.h"
#include "engine/weights.h"
#include "model/registry.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

/// The folder that adapters were trained on.
fs::path base_of(const AdapterFolder& adapter) {
  const fs::path base = adapter.config().base;
  std::error_code error;
  if (!base.empty() && fs::is_directory(base, error)) return base;
  throw Error(ErrorCode::usage,
              fmt::format("{} has adapters of {}, which is no folder here", adapter.path().string(),
                          base.empty() ? "a model that it does not name"
                                       : fmt::format("\"{}\"", base.string())),
              "name the model's folder, and these with --adapter");
}

Tensor read_matrix(const SafetensorsFile& file, const std::string& name, Memory& memory) {
  const Tensor matrix = memory.alloc(file.entry(name).shape(), DType::f32, MemoryTag::workspace);
  file.read(name, matrix);
  return matrix;
}

Error of_another_base(const AdapterFolder& folder, const std::string& what) {
  return Error(ErrorCode::data, fmt::format("{}: {}", folder.tensors().path().string(), what),
               folder.config().base.empty()
                   ? "these adapters belong to another model"
                   : fmt::format("these adapters were trained on \"{}\"", folder.config().base));
}

/// Scales follow from the rank, so a wrong one would not show in the shapes of merged weights.
void require_rank(const AdapterFolder& folder, const SafetensorsEntry& entry) {
  const Shape shape = entry.shape();
  const std::int64_t rank = folder.config().rank;
  const bool is_down = entry.name == adapter_name(*adapted_module(entry.name), AdapterPart::down);
  if (shape.dims() == 2 && shape[is_down ? 0 : 1] == rank) return;
  throw Error(
      ErrorCode::data,
      fmt::format("{}: r = {}, but tensor {} has shape {}",
                  (folder.path() / kAdapterConfigFile).string(), rank, entry.name, shape.text()),
      "adapter_config.json and adapter_model.safetensors are of different adapters; copy "
      "the whole folder again");
}

}  // namespace

fs::path StoredModel::texts() const {
  std::error_code error;
  const bool brings = adapter && fs::exists(adapter->path() / "tokenizer.json", error);
  return brings ? adapter->path() : base;
}

AdapterFolder open_adapters(const fs::path& path) {
  return AdapterFolder(has_adapters(path) ? path : ModelSource(path).path());
}

StoredModel open_stored_model(const fs::path& model, const fs::path& adapter) {
  StoredModel stored;
  const ModelSource source(model);
  if (has_adapters(source.path())) {
    if (!adapter.empty()) {
      throw Error(
          ErrorCode::usage,
          fmt::format("{} has adapters itself, and --adapter names others", source.path().string()),
          "name a model's folder, or leave out --adapter");
    }
    stored.adapter.emplace(source.path());
    stored.base = ModelSource(base_of(*stored.adapter)).path();
  } else {
    stored.base = source.path();
    if (!adapter.empty()) stored.adapter.emplace(open_adapters(adapter));
  }
  stored.spec = read_model_spec(stored.base / "config.json");
  // Before anything takes memory for what the config says.
  check_weights(HfFolder(stored.base), stored.spec);
  if (stored.adapter) stored.spec.tuning.lora = lora_of(*stored.adapter, stored.spec);
  return stored;
}

void load_stored_model(const StoredModel& model, ParamStore& store, Stream& stream,
                       const observe::Terminal& terminal) {
  load_weights(HfFolder(model.base), model.spec, store, stream, terminal);
  if (model.adapter) load_adapters(*model.adapter, store, stream);
}

LoraSpec lora_of(const AdapterFolder& folder, const ModelSpec& base) {
  const AdapterConfig& config = folder.config();
  LoraSpec lora{.rank = config.rank,
                .alpha = config.alpha,
                .is_rank_stabilized = config.is_rank_stabilized,
                .targets = {},
                .dropout = config.dropout};
  const std::vector<std::string> modules = adaptable_modules(base);
  const std::set<std::string> known(modules.begin(), modules.end());
  std::set<std::string> adapted;
  for (const SafetensorsEntry& entry : folder.tensors().entries()) {
    const auto module = adapted_module(entry.name);
    if (!module) {
      throw Error(ErrorCode::data,
                  fmt::format("{}: tensor {} is none of a low-rank adapter",
                              folder.tensors().path().string(), entry.name),
                  "names end in .lora_A.weight and .lora_B.weight");
    }
    if (!known.contains(*module)) {
      throw of_another_base(folder, fmt::format("{} is no linear layer in a block of this {} model",
                                                *module, base.family));
    }
    require_rank(folder, entry);
    adapted.insert(*module);
  }
  if (adapted.empty()) {
    throw Error(ErrorCode::data,
                fmt::format("{} has no adapters", folder.tensors().path().string()));
  }
  // All of them are as good as none: the same spec as that of the run that wrote them.
  if (adapted.size() < known.size()) lora.targets.assign(adapted.begin(), adapted.end());
  return lora;
}

void load_adapters(const AdapterFolder& folder, ParamStore& store, Stream& stream) {
  const SafetensorsFile& file = folder.tensors();
  Stream host(stream.threads());
  for (const ParamPiece& piece : store.value_pieces()) {
    if (!piece.parameter->is_adapter) continue;
    const std::string& name = piece.part->name;
    const Shape shape = file.entry(name).shape();
    if (shape != piece.part->whole) {
      throw of_another_base(folder, fmt::format("tensor {} has shape {}, but the model makes it {}",
                                                name, shape.text(), piece.part->whole.text()));
    }
    fill_from_host(piece, stream, [&](const Tensor& to) {
      file.read_slice(name, piece.begin.sizes(), piece.end().sizes(), to);
      require_finite(piece, to, name, file.path(), host);
    });
  }
  store.values_changed(stream);
}

AdapterConfig adapter_config(const ModelSpec& spec, const std::string& base) {
  const LoraSpec& lora = *spec.tuning.lora;
  AdapterConfig config{.base = base,
                       .rank = lora.rank,
                       .alpha = lora.alpha,
                       .is_rank_stabilized = lora.is_rank_stabilized,
                       .dropout = lora.dropout,
                       .targets = lora.targets,
                       .are_in_out = spec.linears_are_in_out};
  if (!config.targets.empty()) return config;
  // The ends of names would mean experts too, which have none.
  for (const std::string& module : adaptable_modules(spec)) {
    const std::string name = spec.experts ? module : module.substr(module.rfind('.') + 1);
    if (std::ranges::find(config.targets, name) == config.targets.end()) {
      config.targets.push_back(name);
    }
  }
  return config;
}

std::map<std::string, LowRankUpdate> merged_updates(const StoredModel& model) {
  std::map<std::string, LowRankUpdate> updates;
  const ModelSource base(model.base);
  const SafetensorsFile& file = model.adapter->tensors();
  Memory memory;
  for (const std::string& module : adaptable_modules(model.spec)) {
    const std::string down = adapter_name(module, AdapterPart::down);
    if (file.find(down) == nullptr) continue;
    std::string name = module + ".weight";
    // GPT-2's first published files lack the prefix of all names.
    if (!base.weights().contains(name)) name = name.substr(name.find('.') + 1);
    updates[name] = {.up = read_matrix(file, adapter_name(module, AdapterPart::up), memory),
                     .down = read_matrix(file, down, memory),
                     .scale = model.spec.tuning.lora->scale(),
                     .is_in_out = model.spec.linears_are_in_out};
  }
  return updates;
}

}  // namespace heddle
