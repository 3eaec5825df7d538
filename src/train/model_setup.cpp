#include "train/model_setup.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "config/presets.h"
#include "engine/weights.h"
#include "model/registry.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

Json config_of(const std::string& source, std::string& where) {
  const auto presets = config::preset_names();
  if (std::ranges::find(presets, source) != presets.end()) {
    where = "preset " + source;
    return parse_json(config::preset_config(source), where);
  }
  const fs::path path =
      fs::is_directory(source) ? fs::path(source) / "config.json" : fs::path(source);
  if (!fs::exists(path)) {
    throw Error(ErrorCode::usage,
                fs::is_directory(source)
                    ? fmt::format("model folder {} has no config.json", source)
                    : fmt::format("model \"{}\" is neither a preset nor a file or folder", source),
                fmt::format("presets: {}", fmt::join(presets, ", ")));
  }
  where = path.string();
  return read_json_file(path);
}

}  // namespace

ModelSpec named_model(const std::string& source, std::int64_t vocab_size) {
  std::string where;
  Json config = config_of(source, where);
  if (vocab_size > 0 && config.is_object()) config["vocab_size"] = vocab_size;
  return model_spec(config, where);
}

ModelSpec configured_model(const config::ModelConfig& model) {
  const std::string source = !model.preset.empty() ? model.preset
                             : !model.path.empty() ? model.path.string()
                                                   : model.config.string();
  ModelSpec spec = named_model(source, model.vocab_size);
  if (model.init_std) spec.init_stddev = *model.init_std;
  return spec;
}

Device::Kind device_kind(const config::RunConfig& config) {
  return config.run.device == config::DeviceName::cuda ? Device::Kind::cuda : Device::Kind::cpu;
}

DType compute_dtype(const config::RunConfig& config) {
  if (config.run.dtype == config::FloatType::f32) return DType::f32;
  if (device_kind(config) == Device::Kind::cpu) {
    throw Error(ErrorCode::usage, "run.dtype = \"bf16\" is not computed on CPU",
                "use \"f32\", or run.device = \"cuda\"");
  }
  return DType::bf16;
}

bool scales_residual_init(const config::ModelConfig& model, const ModelSpec& spec) {
  return model.scale_residual_init.value_or(spec.family == "gpt2");
}

BuildOptions build_options(const config::RunConfig& config, const ModelSpec& spec) {
  return {.dtype = compute_dtype(config),
          .positions = config.data.seq_len,
          .recompute_blocks = config.train.recompute == config::Recompute::block,
          .loss_chunk = config.train.loss_chunk > 0
                            ? config.train.loss_chunk
                            : usual_loss_chunk(spec, {device_kind(config), 0}),
          .scale_residual_init = scales_residual_init(config.model, spec)};
}

AdamWConfig adamw_config(const config::OptimConfig& optim) {
  return {.beta1 = optim.beta1,
          .beta2 = optim.beta2,
          .eps = optim.eps,
          .weight_decay = optim.weight_decay};
}

LrSchedule lr_schedule(const config::RunConfig& config) {
  LrSchedule schedule;
  switch (config.optim.schedule) {
    case config::LrSchedule::constant: schedule.shape = LrSchedule::Shape::constant; break;
    case config::LrSchedule::linear: schedule.shape = LrSchedule::Shape::linear; break;
    case config::LrSchedule::cosine: schedule.shape = LrSchedule::Shape::cosine; break;
    case config::LrSchedule::wsd: schedule.shape = LrSchedule::Shape::wsd; break;
  }
  schedule.peak = config.optim.lr;
  schedule.final = config.optim.min_lr;
  schedule.warmup_steps = config.optim.warmup_steps;
  schedule.decay_steps = config.optim.decay_steps;
  schedule.total_steps = config.total_steps();
  return schedule;
}

void start_weights(const config::RunConfig& config, Model& model, Stream& stream,
                   const observe::Terminal& terminal) {
  if (config.model.path.empty()) {
    initialize(model.store(), static_cast<std::uint64_t>(config.init_seed()), stream);
  } else {
    load_weights(HfFolder(config.model.path), model.spec(), model.store(), stream, terminal);
  }
}

}  // namespace heddle
