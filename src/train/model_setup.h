#pragma once

#include <optional>
#include <string>

#include "config/load.h"
#include "engine/model.h"
#include "engine/peer_copy.h"
#include "model/spec.h"
#include "observe/terminal.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "planner/predicted_step.h"
#include "train/run_tokenizer.h"

namespace heddle {

/// config::load_run_file, which here also refuses what the model's sizes do not allow: all that is
/// wrong with a run file is told at once.
config::LoadedRun load_run(const std::filesystem::path& path,
                           const std::vector<std::string>& overrides, int ranks);

/// The model that a name stands for: a preset, a config.json, or a model folder.
ModelSpec named_model(const std::string& source);

/// The model that a run file describes. Where the run brings a tokenizer of its own, bos, eos and
/// pad of the config become the tokenizer's, and with random weights the vocabulary too:
/// model.vocab_size, else exactly the tokenizer's for a preset, at least that for a config.json.
/// A model that goes on with its own tokenizer keeps its tokens; a data.eos is one more that ends
/// texts.
ModelSpec configured_model(const config::RunConfig& config, const RunTokenizer& tokenizer);

/// Adds a token to those that end texts, `eos_token_id` of a config.json or generation_config.json.
void add_end_token(Json& config, std::int32_t id);

/// What to say of the vocabulary of random weights where it is not the one that the preset or
/// config names, or has tokens that the tokenizer does not use; empty when there is nothing to say.
std::string vocabulary_remark(const config::RunConfig& config, const ModelSpec& spec,
                              const std::optional<Tokenizer>& tokenizer);
/// What to warn of when sequences are longer than the positions that the model was made for; empty
/// when they are not.
std::string beyond_positions(const ModelSpec& spec, std::int64_t seq_len);

/// What a run computes on and in.
Device::Kind device_kind(const config::RunConfig& config);
/// Error(usage) for bf16 on CPU, where nothing computes in it.
DType compute_dtype(const config::RunConfig& config);

/// model.scale_residual_init, or what the model's family does.
bool scales_residual_init(const config::ModelConfig& model, const ModelSpec& spec);

/// How a run builds its model's layers.
BuildOptions build_options(const config::RunConfig& config, const ModelSpec& spec);

/// The optimizer of a run; optim.lr and its schedule are no part of it.
OptimizerConfig optimizer_config(const config::OptimConfig& optim);
LrSchedule lr_schedule(const config::RunConfig& config);
/// How a run's sites meet.
OuterPolicy outer_policy(const config::OuterConfig& outer);

/// Whose state other ranks keep too, where that is nowhere else (PeerCopy).
KeptCopies kept_copies(const config::RunConfig& config);

/// What predictions of a run's steps depend on beside its plan.
planner::RunBatches run_batches(const config::RunConfig& config);

/// How a run's model lies on so many ranks (make_plan). `sites_left`: where fewer sites are left
/// than the run file has; 0: all are there. A single one goes on with its outer steps. What
/// parallel.ep_exchange leaves to be planned is planned for the machine that observe.system names.
ParallelPlan configured_plan(const config::RunConfig& config, const ModelSpec& spec, int ranks,
                             int sites_left = 0);

/// The weights that a run starts from: those of model.path, or random ones.
void start_weights(const config::RunConfig& config, Model& model, Stream& stream,
                   const observe::Terminal& terminal);

}  // namespace heddle
