#pragma once

#include <string>

#include "config/run_config.h"
#include "engine/model.h"
#include "model/spec.h"
#include "observe/terminal.h"
#include "optim/adamw.h"
#include "optim/lr_schedule.h"

namespace heddle {

/// The model that a name stands for: a preset, a config.json, or a model folder. `vocab_size` other
/// than 0 replaces the config's.
ModelSpec named_model(const std::string& source, std::int64_t vocab_size = 0);

/// The model that a run file describes.
ModelSpec configured_model(const config::ModelConfig& model);

/// What a run computes on and in.
Device::Kind device_kind(const config::RunConfig& config);
/// Error(usage) for bf16 on CPU, where nothing computes in it.
DType compute_dtype(const config::RunConfig& config);

/// model.scale_residual_init, or what the model's family does.
bool scales_residual_init(const config::ModelConfig& model, const ModelSpec& spec);

/// How a run builds its model's layers.
BuildOptions build_options(const config::RunConfig& config, const ModelSpec& spec);

AdamWConfig adamw_config(const config::OptimConfig& optim);
LrSchedule lr_schedule(const config::RunConfig& config);

/// The weights that a run starts from: those of model.path, or random ones.
void start_weights(const config::RunConfig& config, Model& model, Stream& stream,
                   const observe::Terminal& terminal);

}  // namespace heddle
