#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "nn/experts/gate.h"
#include "parallel/compression.h"
#include "parallel/parallel_request.h"
#include "planner/updates.h"

namespace heddle::config {

// The run file, resolved: one struct per section, one member per key. The member's initialiser is
// the key's default (of [parallel] that of RunConfig::parallel); everything else about a key
// (range, unit, help) is in keys.cpp. A path or text that is empty, and an optional that has no
// value, was not given. Enumerators are in the order of the names in keys.cpp.

enum class DataKind { text, chat };
enum class Documents { mask, ignore };
enum class Recompute { none, block };
enum class OnNonfinite { skip, stop };
enum class OnLostSite { stop, go_on };
enum class LostStages { none, checkfree, checkfree_plus, skip };
enum class MuonScale { original, match_rms_adamw };
enum class LrSchedule { constant, linear, cosine, wsd };
enum class FloatType { f32, bf16 };
enum class DeviceName { cpu, cuda };

/// One entry of [[data.sources]].
struct DataSource {
  std::filesystem::path path;
  double weight = 1.0;
  std::string name;
  bool operator==(const DataSource&) const = default;
};

struct ModelConfig {
  std::string preset;
  std::filesystem::path path;
  std::filesystem::path config;
  std::int64_t vocab_size = 0;
  std::optional<std::int64_t> seed;
  std::optional<double> init_std;
  std::optional<bool> scale_residual_init;
  bool ignore_dropout = false;
  std::optional<double> router_aux_loss, router_z_loss, router_bias_rate;
  // Of gates of experts (nn/experts/gate.h):
  Balance router_balance = Balance::choices;
  ops::Noise router_noise = ops::Noise::none;
  double router_noise_scale = 1.0;
  double capacity_factor = 0.0;
  Capacity::Formula capacity_rule = Capacity::Formula::megatron;
  std::int64_t capacity_least = 4, capacity_multiple = 1;
  ops::Victims drop = ops::Victims::late_slots;
  bool renorm_after_drop = false;
  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  std::filesystem::path train;
  std::vector<DataSource> sources;
  std::filesystem::path eval;
  double holdout = 0.01;
  DataKind kind = DataKind::text;
  std::string messages_field = "messages", prompt_field = "prompt", answer_field = "completion";
  std::filesystem::path tokenizer;
  std::string eos;
  std::string format;
  std::string field = "text";
  std::int64_t seq_len = 1024;
  Documents documents = Documents::mask;
  std::optional<std::int64_t> seed;
  bool stream = false;
  std::int64_t prefetch = 4;
  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t microbatch = 1;
  Recompute recompute = Recompute::none;
  std::int64_t loss_chunk = 0;
  std::int64_t eval_every = 0;
  std::int64_t eval_tokens = 0;
  std::int64_t patience = 0;
  std::int64_t sample_every = 0;
  std::string sample_prompt;
  std::int64_t sample_tokens = 64;
  OnNonfinite nonfinite = OnNonfinite::skip;
  std::int64_t nonfinite_limit = 10;
  std::vector<std::string> freeze;
  bool operator==(const TrainConfig&) const = default;
};

/// Low-rank adapters beside a frozen model (docs/design/062-fine-tuning.md).
struct LoraConfig {
  std::optional<std::int64_t> rank;
  std::optional<double> alpha;
  std::optional<bool> rslora;
  std::optional<double> dropout;
  std::vector<std::string> targets;
  std::filesystem::path path;
  bool operator==(const LoraConfig&) const = default;

  bool is_given() const { return rank || !path.empty(); }
};

struct OptimConfig {
  planner::Updates name = planner::Updates::adamw;
  double lr = 3e-4;
  double min_lr = 0.0;
  LrSchedule schedule = LrSchedule::cosine;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;
  std::optional<double> momentum;
  std::optional<bool> nesterov;
  double dampening = 0.0;
  std::optional<double> muon_lr;
  MuonScale muon_scale = MuonScale::match_rms_adamw;
  std::int64_t newton_schulz_steps = 5;
  std::optional<std::int64_t> freeze_step;
  double freeze_ratio = 0.96;
  bool freeze_mask = true;
  bool operator==(const OptimConfig&) const = default;

  /// The momentum of sgd or muon, and whether it is Nesterov's: as given, or torch.optim's
  /// defaults.
  double used_momentum() const {
    return momentum.value_or(name == planner::Updates::muon ? 0.95 : 0.0);
  }
  bool uses_nesterov() const { return nesterov.value_or(name == planner::Updates::muon); }
};

/// What sites do with each other (OuterPolicy).
struct OuterConfig {
  int every = 100;
  std::optional<int> fragments;
  std::optional<int> delay;
  std::optional<double> mix;
  std::string codec = "e3m0:256";
  std::optional<double> lr;
  std::optional<double> momentum;
  std::optional<double> feedback;
  OnLostSite lost = OnLostSite::stop;
  bool operator==(const OuterConfig&) const = default;

  // As given, or Streaming DiLoCo as far as `every` has room for it.
  int used_fragments() const { return fragments.value_or(std::min(8, every)); }
  int used_delay() const { return delay.value_or(std::min(1, every - 1)); }
  double used_mix() const { return mix.value_or(used_delay() > 0 ? 0.5 : 0.0); }
  /// Whether what the codec leaves out is most of it: the sparse form's defaults are others.
  bool is_sparse() const { return codec.starts_with("topk") || codec.starts_with("sign"); }
  double used_feedback() const { return feedback.value_or(is_sparse() ? 0.95 : 0.0); }
  double used_momentum() const { return momentum.value_or(is_sparse() ? 0.0 : 0.9); }
  double used_lr() const { return lr.value_or(is_sparse() ? 1.0 : 0.4); }
};

struct CheckpointConfig {
  std::int64_t every = 500;
  std::int64_t keep = 3;
  std::int64_t keep_every = 0;
  bool best = true;
  FloatType dtype = FloatType::f32;
  bool on_exit = true;
  bool resume = true;
  bool operator==(const CheckpointConfig&) const = default;
};

struct RecoverConfig {
  bool elastic = false;
  double timeout = 60;
  std::int64_t copies = 0;
  LostStages stages = LostStages::none;
  bool recut = false;
  bool operator==(const RecoverConfig&) const = default;
};

/// Of the section `parallel`, what is no part of a request that a planner varies.
struct StagesConfig {
  std::string cut;
  bool operator==(const StagesConfig&) const = default;
};

struct ObserveConfig {
  std::int64_t console_every = 1;
  bool tensorboard = true;
  bool report = true;
  bool trace = false;
  std::int64_t trace_limit = std::int64_t{256} << 20;
  std::filesystem::path system;
  bool operator==(const ObserveConfig&) const = default;
};

struct RunSection {
  std::string name;
  std::filesystem::path dir;
  std::int64_t seed = 0;
  DeviceName device = DeviceName::cpu;
  FloatType dtype = FloatType::f32;
  std::int64_t threads = 0;
  bool deterministic = false;
  std::int64_t memory_limit = 0;
  double timeout = 600;
  bool operator==(const RunSection&) const = default;
};

struct RunConfig {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  LoraConfig lora;
  OptimConfig optim;
  ParallelRequest parallel = {.zero = 1, .sequence = true};
  StagesConfig stages;
  OuterConfig outer;
  Compression compress;
  CheckpointConfig checkpoint;
  RecoverConfig recover;
  ObserveConfig observe;
  RunSection run;

  bool operator==(const RunConfig&) const = default;

  // What follows from the keys. Valid once validate.h's checks have passed.

  /// Data-parallel replicas of all sites; one in each when parallel.dp is left to be derived.
  std::int64_t replicas() const {
    return std::int64_t{parallel.sites} * (parallel.dp == 0 ? 1 : parallel.dp);
  }
  /// Tokens of one micro-batch on every replica.
  std::int64_t tokens_per_microbatch() const {
    return train.microbatch * data.seq_len * replicas();
  }
  /// Tokens of one optimizer step over all replicas.
  std::int64_t tokens_per_step() const {
    return train.tokens_per_step == 0 ? tokens_per_microbatch() : train.tokens_per_step;
  }
  /// Micro-batches whose gradients are summed in one step, on each replica; where replicas were
  /// lost and shares differ, on those that have most.
  std::int64_t accumulation() const {
    return (tokens_per_step() + tokens_per_microbatch() - 1) / tokens_per_microbatch();
  }
  /// Optimizer steps of the whole run; train.tokens is rounded up to whole steps.
  std::int64_t total_steps() const {
    return train.steps > 0 ? train.steps
                           : (train.tokens + tokens_per_step() - 1) / tokens_per_step();
  }
  std::int64_t init_seed() const { return model.seed.value_or(run.seed); }
  std::int64_t data_seed() const { return data.seed.value_or(run.seed); }
  std::filesystem::path folder() const {
    return run.dir.empty() ? std::filesystem::path("runs") / run.name : run.dir;
  }
};

}  // namespace heddle::config
