#include "train/model_setup.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"
#include "codec/registry.h"
#include "config/presets.h"
#include "engine/adapters.h"
#include "engine/weights.h"
#include "model/given_cut.h"
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
  if (!fs::exists(path) && fs::is_directory(source)) {
    throw Error(ErrorCode::usage, fmt::format("model folder {} has no config.json", source),
                fs::is_directory(fs::path(source) / "checkpoints")
                    ? "it is a run folder: name one of its checkpoints, or what heddle convert "
                      "writes of it"
                    : "name a Hugging Face folder, with config.json and weights");
  }
  if (!fs::exists(path)) {
    throw Error(
        ErrorCode::usage,
        fmt::format("model \"{}\" is neither a preset nor a file or folder", shortened(source)),
        fmt::format("presets: {}", fmt::join(presets, ", ")));
  }
  where = path.string();
  return read_json_file(path);
}

std::string source_of(const config::ModelConfig& model) {
  return !model.preset.empty() ? model.preset
         : !model.path.empty() ? model.path.string()
                               : model.config.string();
}

/// Ids in a config are those of its tokenizer. An id that is missing would be the family's (2 ends
/// a llama), so null is written where the tokenizer has no such token.
void use_tokenizer(Json& json, const config::RunConfig& config, const RunTokenizer& of_run) {
  const Tokenizer& tokenizer = *of_run.tokenizer;
  if (of_run.is_models) {
    if (const auto end = chosen_end_token(config, tokenizer)) add_end_token(json, *end);
    return;
  }
  const SpecialTokens tokens = run_special_tokens(config, tokenizer);
  const auto put = [&](const char* key, std::optional<std::int32_t> id) {
    json[key] = id ? Json(*id) : Json(nullptr);
  };
  put("bos_token_id", tokens.bos);
  put("eos_token_id", tokens.eos);
  put("pad_token_id", tokens.pad);
  if (!config.model.path.empty() || config.model.vocab_size > 0) return;
  const auto named = json.find("vocab_size");
  if (named == json.end() || !named->is_number_integer()) return;
  const std::int64_t wanted = tokenizer.vocab_size();
  if (!config.model.preset.empty() || named->get<std::int64_t>() < wanted) *named = wanted;
}

/// A preset's ids mean nothing in a smaller vocabulary, whatever its tokenizer is.
void drop_ids_beyond(ModelSpec& spec) {
  Json json = *spec.config;
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const auto at = json.find(key);
    if (at != json.end() && at->is_number_integer() && *at >= spec.vocab) *at = nullptr;
  }
  spec.config = std::make_shared<const Json>(std::move(json));
}

/// Those that are not as they are when the run file does not name them.
std::vector<std::string> given_gate_keys(const config::ModelConfig& model) {
  const config::ModelConfig usual;
  std::vector<std::string> given;
  const auto name = [&](bool is_given, const char* key) {
    if (is_given) given.emplace_back(key);
  };
  name(model.router_aux_loss.has_value(), "model.router_aux_loss");
  name(model.router_z_loss.has_value(), "model.router_z_loss");
  name(model.router_bias_rate.has_value(), "model.router_bias_rate");
  name(model.router_balance != usual.router_balance, "model.router_balance");
  name(model.router_noise != usual.router_noise, "model.router_noise");
  name(model.router_noise_scale != usual.router_noise_scale, "model.router_noise_scale");
  name(model.capacity_factor != usual.capacity_factor, "model.capacity_factor");
  name(model.capacity_rule != usual.capacity_rule, "model.capacity_rule");
  name(model.capacity_least != usual.capacity_least, "model.capacity_least");
  name(model.capacity_multiple != usual.capacity_multiple, "model.capacity_multiple");
  name(model.drop != usual.drop, "model.drop");
  name(model.renorm_after_drop != usual.renorm_after_drop, "model.renorm_after_drop");
  return given;
}

void use_gate_keys(const config::RunConfig& config, ModelSpec& spec) {
  const config::ModelConfig& model = config.model;
  if (!spec.experts) {
    const std::vector<std::string> given = given_gate_keys(model);
    if (given.empty()) return;
    const std::string keys = fmt::format("{}", fmt::join(given, ", "));
    throw Error(ErrorCode::usage,
                fmt::format("{} {} given, but a {} model has no experts", keys,
                            given.size() == 1 ? "is" : "are", spec.family),
                fmt::format("remove {}", keys));
  }
  ExpertsSpec& experts = *spec.experts;
  experts.loss.balance = model.router_aux_loss.value_or(experts.loss.balance);
  experts.loss.z = model.router_z_loss.value_or(experts.loss.z);
  if (model.router_bias_rate && experts.bias.empty()) {
    throw Error(ErrorCode::usage,
                "model.router_bias_rate is given, but the model's routers have no bias",
                "remove it, or set topk_method to \"noaux_tc\" in the model's config");
  }
  experts.bias_rate = model.router_bias_rate.value_or(experts.bias_rate);
  GateRule& gate = experts.gating;
  if (model.router_balance == Balance::global && config.parallel.sites > 1) {
    throw Error(ErrorCode::usage,
                fmt::format("model.router_balance = \"global\" does not go with parallel.sites = "
                            "{}, which see different tokens",
                            config.parallel.sites),
                "use \"deepseek\" or \"megatron\"");
  }
  gate.balance = model.router_balance;
  gate.noise = model.router_noise;
  gate.noise_scale = model.router_noise_scale;
  gate.capacity = {.factor = model.capacity_factor,
                   .formula = model.capacity_rule,
                   .least = model.capacity_least,
                   .multiple = model.capacity_multiple,
                   .victims = model.drop,
                   .renormalizes = model.renorm_after_drop};
}

/// Before a rank finds out in its first step.
void check_capacity(const config::RunConfig& config, const ModelSpec& spec) {
  if (!spec.experts || !spec.experts->gating.capacity.limits()) return;
  const Capacity& capacity = spec.experts->gating.capacity;
  if (capacity.factor < 0.0 && capacity.formula != Capacity::Formula::tutel) {
    throw Error(ErrorCode::usage,
                fmt::format("model.capacity_factor = {} is negative", capacity.factor),
                "that has a meaning with model.capacity_rule = \"tutel\" only");
  }
  const std::int64_t shares =
      std::int64_t{config.parallel.cp} * (config.parallel.ep > 1 ? config.parallel.tp : 1);
  const std::int64_t tokens = config.train.microbatch * config.data.seq_len / shares;
  capacity.rows(std::max<std::int64_t>(1, tokens), spec.experts->count, spec.experts->per_token);
}

/// The stages that the run file gives. Error(usage) where the model has no such.
std::vector<DecoderPart::Units> cut_of(const config::RunConfig& config, const ModelSpec& spec,
                                       const std::vector<int>& rank_of_stage) {
  const std::vector<int> blocks = parse_cut(config.stages.cut);
  const std::string problem = problem_of_cut(spec, blocks, rank_of_stage);
  if (!problem.empty()) throw Error(ErrorCode::usage, problem, "");
  return units_of_cut(spec, blocks);
}

/// Nothing where the model cannot be read: whoever needs it will say why.
std::vector<config::Conflict> model_conflicts(const config::RunConfig& config, int ranks) {
  std::optional<ModelSpec> spec;
  try {
    spec = named_model(source_of(config.model));
  } catch (const Error&) {
    return {};
  }
  std::vector<config::Conflict> conflicts;
  for (RequestProblem& problem : problems_of(*spec, config.parallel, ranks)) {
    problem.keys.emplace_back("model");
    conflicts.push_back({std::move(problem.keys), std::move(problem.message)});
  }
  if (!conflicts.empty() || config.stages.cut.empty()) return conflicts;
  try {
    cut_of(config, *spec, step_schedule(config.parallel, 1).rank_of_stage);
  } catch (const Error& error) {
    conflicts.push_back({{"parallel.cut", "model"}, error.message()});
  }
  return conflicts;
}

}  // namespace

config::LoadedRun load_run(const fs::path& path, const std::vector<std::string>& overrides,
                           int ranks) {
  const auto of_model = [&](const config::RunConfig& config) {
    return model_conflicts(config, ranks);
  };
  return config::load_run_file(path, overrides, ranks, of_model);
}

ModelSpec named_model(const std::string& source) {
  std::string where;
  const Json config = config_of(source, where);
  return model_spec(config, where);
}

void add_end_token(Json& config, std::int32_t id) {
  Json& ends = config["eos_token_id"];
  if (ends.is_null()) {
    ends = id;
    return;
  }
  if (!ends.is_array()) ends = Json::array({ends});
  if (std::find(ends.begin(), ends.end(), Json(id)) == ends.end()) ends.push_back(id);
  if (ends.size() == 1) ends = Json(ends.front());
}

namespace {

/// What the run file says of adapters, or the folder that they come from.
std::optional<LoraSpec> configured_lora(const config::RunConfig& config, const ModelSpec& base) {
  const config::LoraConfig& lora = config.lora;
  const auto seed = static_cast<std::uint64_t>(config.run.seed);
  if (!lora.is_given()) return std::nullopt;
  if (lora.path.empty()) {
    return LoraSpec{.rank = *lora.rank,
                    .alpha = lora.alpha.value_or(static_cast<double>(*lora.rank)),
                    .is_rank_stabilized = lora.rslora.value_or(false),
                    .targets = lora.targets,
                    .dropout = lora.dropout.value_or(0.0),
                    .dropout_seed = seed};
  }
  LoraSpec stored = lora_of(open_adapters(lora.path), base);
  stored.dropout = lora.dropout.value_or(stored.dropout);
  stored.dropout_seed = seed;
  const auto agree = [&](const char* key, auto given, auto is) {
    if (!given || *given == is) return;
    throw Error(ErrorCode::usage,
                fmt::format("{} = {}, but the adapters in lora.path = {} have {}", key, *given,
                            lora.path.string(), is),
                fmt::format("remove {}", key));
  };
  agree("lora.rank", lora.rank, stored.rank);
  agree("lora.alpha", lora.alpha, stored.alpha);
  agree("lora.rslora", lora.rslora, stored.is_rank_stabilized);
  if (lora.targets.empty()) return stored;
  const LoraSpec asked{.targets = lora.targets};
  for (const std::string& module : adaptable_modules(base)) {
    if (asked.adapts(module) == stored.adapts(module)) continue;
    throw Error(ErrorCode::usage,
                fmt::format("lora.targets {} {}, which the adapters in lora.path = {} {}",
                            asked.adapts(module) ? "name" : "do not name", module,
                            lora.path.string(), stored.adapts(module) ? "have" : "have not"),
                "remove lora.targets");
  }
  return stored;
}

}  // namespace

ModelSpec configured_model(const config::RunConfig& config, const RunTokenizer& tokenizer) {
  const config::ModelConfig& model = config.model;
  std::string where;
  Json json = config_of(source_of(model), where);
  if (json.is_object()) {
    if (model.vocab_size > 0) json["vocab_size"] = model.vocab_size;
    if (tokenizer.tokenizer) use_tokenizer(json, config, tokenizer);
  }
  ModelSpec spec = model_spec(json, where);
  if (model.path.empty()) drop_ids_beyond(spec);
  if (model.init_std) spec.init_stddev = *model.init_std;
  use_gate_keys(config, spec);
  spec.tuning = {.lora = configured_lora(config, spec), .freeze = config.train.freeze};
  check_tuning(spec);
  check_capacity(config, spec);
  if (model.path.empty() && spec.init_stddev == 0.0) {
    throw Error(ErrorCode::usage,
                fmt::format("{} is 0: all weights would start as 0 and learn nothing",
                            model.init_std ? "model.init_std" : where + ": initializer_range"),
                "set model.init_std; 0.02 is usual");
  }
  return spec;
}

std::string beyond_positions(const ModelSpec& spec, std::int64_t seq_len) {
  if (seq_len <= spec.max_positions) return {};
  return fmt::format(
      "sequences of {} tokens are longer than the {} positions that the model was made for "
      "(max_position_embeddings)",
      seq_len, spec.max_positions);
}

std::string vocabulary_remark(const config::RunConfig& config, const ModelSpec& spec,
                              const std::optional<Tokenizer>& tokenizer) {
  if (!tokenizer || !config.model.path.empty()) return {};
  const std::string source = source_of(config.model);
  const std::int64_t named = named_model(source).vocab;
  if (config.model.vocab_size == 0 && named != spec.vocab) {
    return fmt::format("{} tokens, the tokenizer's; {} has {}", format_thousands(spec.vocab),
                       source, format_thousands(named));
  }
  if (tokenizer->vocab_size() >= spec.vocab) return {};
  return fmt::format("{} tokens, of which the tokenizer uses the first {}",
                     format_thousands(spec.vocab), format_thousands(tokenizer->vocab_size()));
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

OptimizerConfig optimizer_config(const config::OptimConfig& optim) {
  const AdamWConfig adamw{.beta1 = optim.beta1,
                          .beta2 = optim.beta2,
                          .eps = optim.eps,
                          .weight_decay = optim.weight_decay};
  switch (optim.name) {
    case planner::Updates::adamw: return adamw;
    case planner::Updates::sgd:
      return SgdConfig{.momentum = optim.used_momentum(),
                       .dampening = optim.dampening,
                       .nesterov = optim.uses_nesterov(),
                       .weight_decay = optim.weight_decay};
    case planner::Updates::onebit_adam:
      return OnebitAdamConfig{.adamw = adamw,
                              .freeze_step = optim.freeze_step,
                              .settled = optim.freeze_ratio,
                              .least_steps = optim.warmup_steps,
                              .masks = optim.freeze_mask};
    case planner::Updates::muon: break;
  }
  return MuonConfig{.lr_ratio = optim.lr > 0.0 ? optim.muon_lr.value_or(optim.lr) / optim.lr : 1.0,
                    .momentum = optim.used_momentum(),
                    .nesterov = optim.uses_nesterov(),
                    .scale = optim.muon_scale == config::MuonScale::original
                                 ? MuonConfig::Scale::original
                                 : MuonConfig::Scale::match_rms_adamw,
                    .newton_schulz_steps = static_cast<int>(optim.newton_schulz_steps),
                    .rest = adamw};
}

ParallelPlan configured_plan(const config::RunConfig& config, const ModelSpec& spec, int ranks,
                             int sites_left) {
  ParallelRequest request = config.parallel;
  if (sites_left > 0) request.sites = sites_left;
  ParallelPlan plan =
      make_plan(spec, request, ranks, config.data.seq_len,
                needs_whole_matrices(optimizer_config(config.optim)), config.compress);
  if (!config.stages.cut.empty()) plan.units_of_stage = cut_of(config, spec, plan.rank_of_stage);
  if (config.parallel.sites > 1 || sites_left > 0) plan.policy.outer = outer_policy(config.outer);
  plan.retakes_steps = config.recover.elastic;
  if (config.recover.elastic && config.recover.stages != config::LostStages::none) {
    plan.policy.count_stage_squares(plan.pp);
  }
  if (plan.ep_exchange.is_to_be_planned()) {
    planner::PlannedExchange planned =
        planner::planned_exchange(planner::read_machine(config.observe.system), spec, plan,
                                  run_batches(config), compute_dtype(config));
    plan.ep_exchange = planned.exchange;
    plan.policy.windows = std::move(planned.windows);
  }
  return plan;
}

KeptCopies kept_copies(const config::RunConfig& config) {
  if (!config.recover.elastic) return KeptCopies::none;
  if (config.recover.copies > 0) return KeptCopies::all;
  return config.recover.stages == config::LostStages::checkfree_plus ? KeptCopies::first_stage
                                                                     : KeptCopies::none;
}

planner::RunBatches run_batches(const config::RunConfig& config) {
  return {.sequences = config.train.microbatch,
          .seq_len = config.data.seq_len,
          .microbatches = static_cast<int>(config.accumulation()),
          .recompute = config.train.recompute == config::Recompute::block,
          .newton_schulz_steps = static_cast<int>(config.optim.newton_schulz_steps),
          .sends_signs = config.optim.name == planner::Updates::onebit_adam};
}

OuterPolicy outer_policy(const config::OuterConfig& outer) {
  return {.every = outer.every,
          .fragments = outer.used_fragments(),
          .delay = outer.used_delay(),
          .mix = outer.used_mix(),
          .lr = outer.used_lr(),
          .momentum = outer.used_momentum(),
          .feedback = outer.used_feedback(),
          .codec = outer.codec == "none" ? nullptr : codec::make_codec(outer.codec)};
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
  if (!model.spec().tuning.lora) return;
  if (config.lora.path.empty()) {
    initialize(model.store(), static_cast<std::uint64_t>(config.init_seed()), stream,
               Initialized::adapters);
  } else {
    load_adapters(open_adapters(config.lora.path), model.store(), stream);
  }
}

}  // namespace heddle
