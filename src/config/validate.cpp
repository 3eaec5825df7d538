#include "config/validate.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "codec/registry.h"

namespace heddle::config {
namespace {

void check_model_source(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const auto& m = config.model;
  std::vector<std::string> given;
  if (!m.preset.empty()) given.push_back("model.preset");
  if (!m.path.empty()) given.push_back("model.path");
  if (!m.config.empty()) given.push_back("model.config");
  if (given.empty()) {
    conflicts.push_back(
        {{"model"}, "no model; set one of model.preset, model.path and model.config"});
  } else if (given.size() > 1) {
    conflicts.push_back(
        {{given.back()}, fmt::format("{} are given; keep one", fmt::join(given, " and "))});
  }
  if (!m.path.empty() && m.vocab_size != 0) {
    conflicts.push_back(
        {{"model.vocab_size"},
         "model.vocab_size cannot change the vocabulary of the weights in model.path; "
         "remove it, or use model.config for random weights"});
  }
}

void check_chat_and_patience(const RunConfig& config, std::vector<Conflict>& conflicts) {
  if (config.data.kind == DataKind::chat && config.data.documents == Documents::ignore) {
    conflicts.push_back({{"data.documents"},
                         "data.documents = \"ignore\" lets conversations see each other; with "
                         "data.kind = \"chat\" leave it out"});
  }
  if (config.train.patience == 0) return;
  if (config.train.eval_every == 0) {
    conflicts.push_back({{"train.patience"},
                         "train.patience counts evaluations, and there is only the last one; set "
                         "train.eval_every"});
  }
}

void check_tuning(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const LoraConfig& lora = config.lora;
  if (!lora.is_given()) {
    if (lora.alpha || lora.rslora || lora.dropout || !lora.targets.empty()) {
      conflicts.push_back({{"lora"}, "[lora] without lora.rank; set it, or remove the section"});
    }
  } else if (config.model.path.empty()) {
    conflicts.push_back({{"lora"},
                         "[lora] trains adapters of a model that is there already; set model.path, "
                         "or remove the section"});
  } else if (!config.train.freeze.empty()) {
    conflicts.push_back({{"train.freeze"},
                         "train.freeze and [lora] are both given: with adapters all of the model "
                         "is frozen; remove one"});
  }
  if (lora.alpha == 0.0) {
    conflicts.push_back({{"lora.alpha"},
                         "lora.alpha = 0 takes from adapters what they add, and nothing is learnt; "
                         "use lora.rank or more"});
  }
  if (!lora.is_given() && config.train.freeze.empty()) return;
  const std::string what = lora.is_given() ? "[lora]" : "train.freeze";
  const auto refuse = [&](bool is_asked, const char* key, const char* value) {
    if (!is_asked) return;
    conflicts.push_back({{key}, fmt::format("{} does not go with {} = {}", what, key, value)});
  };
  refuse(config.parallel.sites > 1, "parallel.sites", "2 and more");
  refuse(config.recover.stages != LostStages::none, "recover.stages",
         "anything but \"none\": frozen weights are not made of others");
  refuse(config.optim.name == planner::Updates::onebit_adam, "optim.name", "\"onebit-adam\"");
}

void check_data(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const auto& d = config.data;
  if (d.train.empty() && d.sources.empty()) {
    conflicts.push_back({{"data"}, "no training data; set data.train or [[data.sources]]"});
  } else if (!d.train.empty() && !d.sources.empty()) {
    conflicts.push_back(
        {{"data.train"}, "data.train and [[data.sources]] are both given; keep one"});
  }
  std::set<std::string> names;
  double total = 0;
  for (const auto& source : d.sources) {
    total += source.weight;
    if (!names.insert(source.name).second) {
      conflicts.push_back({{"data.sources"},
                           fmt::format("two data.sources have the name \"{}\"; give "
                                       "each its own, for reports",
                                       source.name)});
    }
  }
  if (!d.sources.empty() && !(total > 0)) {
    conflicts.push_back(
        {{"data.sources"}, "all weights of data.sources are 0; give one more than 0"});
  }
  const bool has_objects = d.format != "text" && d.format != "nanogpt" && d.format != "megatron";
  if (d.kind == DataKind::chat && !has_objects) {
    conflicts.push_back({{"data.format", "data.kind"},
                         fmt::format("data.format = \"{}\" has no conversations, which "
                                     "data.kind = \"chat\" needs; they are objects or rows: jsonl, "
                                     "json, csv, tsv, parquet or arrow",
                                     d.format)});
  }
  if (d.stream && d.kind == DataKind::chat) {
    conflicts.push_back({{"data.stream", "data.kind"},
                         "data.stream = true is for text, not for data.kind = \"chat\""});
  }
  if (d.stream && config.recover.elastic) {
    conflicts.push_back({{"data.stream", "recover.elastic"},
                         "data.stream = true needs the first rank to tokenize, which may be lost "
                         "with recover.elastic = true; set one of them to false"});
  }
}

void check_batch(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const std::int64_t unit = config.tokens_per_microbatch();
  const std::int64_t asked = config.train.tokens_per_step;
  constexpr std::int64_t kMostMicrobatches = 1'000'000'000;
  if (asked / unit > kMostMicrobatches) {
    conflicts.push_back(
        {{"train.tokens_per_step"},
         fmt::format("train.tokens_per_step = {} is {} micro-batches of {} tokens a "
                     "step; use at most {}",
                     asked, asked / unit, unit, kMostMicrobatches * unit)});
    return;
  }
  if (asked == 0 || asked % unit == 0) return;
  const std::int64_t below = asked / unit, above = below + 1;
  std::string remedy = fmt::format("use {} ({} accumulated)", above * unit, above);
  if (below > 0)
    remedy =
        fmt::format("use {} ({} accumulated) or {} ({})", below * unit, below, above * unit, above);
  std::string product = fmt::format("train.microbatch {} x data.seq_len {}",
                                    config.train.microbatch, config.data.seq_len);
  const int sites = config.parallel.sites;
  if (config.replicas() > sites) {
    product += fmt::format(" x parallel.dp {}", config.replicas() / sites);
  }
  if (sites > 1) product += fmt::format(" x parallel.sites {}", sites);
  conflicts.push_back(
      {{"train.tokens_per_step", "data.seq_len", "parallel.dp"},
       fmt::format("train.tokens_per_step = {} is not a whole number of micro-batches "
                   "of {} tokens ({}); {}",
                   asked, unit, product, remedy)});
}

void check_context(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const std::int64_t tokens = config.train.microbatch * config.data.seq_len;
  if (config.parallel.cp <= tokens) return;
  conflicts.push_back(
      {{"parallel.cp", "train.microbatch", "data.seq_len"},
       fmt::format("parallel.cp = {} ranks cannot share micro-batches of {} tokens "
                   "(train.microbatch {} x data.seq_len {}), since some would have none; use cp = "
                   "{} or less, or longer sequences",
                   config.parallel.cp, tokens, config.train.microbatch, config.data.seq_len,
                   tokens)});
}

void check_length(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const auto& t = config.train;
  if (t.steps == 0 && t.tokens == 0) {
    conflicts.push_back({{"train"}, "no length; set train.steps or train.tokens"});
  } else if (t.steps != 0 && t.tokens != 0) {
    conflicts.push_back({{"train.tokens"},
                         fmt::format("train.steps = {} and train.tokens = {} are both "
                                     "given; keep one",
                                     t.steps, t.tokens)});
  }
}

void check_learning_rate(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const auto& o = config.optim;
  const std::int64_t steps = config.total_steps();
  if (steps > 0 && o.warmup_steps > steps) {
    conflicts.push_back({{"optim.warmup_steps", "train.steps", "data.seq_len"},
                         fmt::format("optim.warmup_steps = {} is longer than the run of {} steps",
                                     o.warmup_steps, steps)});
  }
  if (o.min_lr > o.lr) {
    conflicts.push_back({{"optim.min_lr"},
                         fmt::format("optim.min_lr = {} is above optim.lr = {}", o.min_lr, o.lr)});
  }
  if (o.schedule == LrSchedule::wsd && o.decay_steps == 0) {
    conflicts.push_back(
        {{"optim.schedule"},
         "optim.schedule = \"wsd\" needs optim.decay_steps, the length of the final "
         "decay"});
  }
  if (o.schedule != LrSchedule::wsd && o.decay_steps != 0) {
    conflicts.push_back({{"optim.decay_steps"},
                         "optim.decay_steps is only used by optim.schedule = \"wsd\"; remove it or "
                         "change the schedule"});
  }
  if (o.schedule == LrSchedule::wsd && steps > 0 && o.warmup_steps + o.decay_steps > steps) {
    conflicts.push_back(
        {{"optim.decay_steps", "train.steps", "data.seq_len"},
         fmt::format(
             "optim.warmup_steps {} + optim.decay_steps {} is longer than the run of {} steps",
             o.warmup_steps, o.decay_steps, steps)});
  }
}

void check_onebit(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const OptimConfig& o = config.optim;
  if (o.freeze_step && *o.freeze_step < o.warmup_steps) {
    conflicts.push_back(
        {{"optim.freeze_step", "optim.warmup_steps"},
         fmt::format("optim.freeze_step = {} lies inside the learning rate's warm-up of {} steps, "
                     "when the second moment is not yet that of training; use {} or more, or a "
                     "shorter optim.warmup_steps",
                     *o.freeze_step, o.warmup_steps, o.warmup_steps)});
  }
  if (o.freeze_step && o.freeze_ratio != OptimConfig{}.freeze_ratio) {
    conflicts.push_back(
        {{"optim.freeze_ratio", "optim.freeze_step"},
         "optim.freeze_ratio finds the step that optim.freeze_step names; keep one"});
  }
  if (config.parallel.zero > 1) {
    conflicts.push_back(
        {{"parallel.zero", "optim.name"},
         fmt::format("parallel.zero = {} divides gradients, of which optim.name = \"onebit-adam\" "
                     "needs all on every rank; use parallel.zero = 0 or 1",
                     config.parallel.zero)});
  }
  if (config.compress.codec(Compression::Kind::gradients) != nullptr) {
    conflicts.push_back({{"compress.gradients", "optim.name"},
                         "optim.name = \"onebit-adam\" sends its gradients by itself, and errors "
                         "of two codecs would add up; leave out compress.gradients"});
  }
}

/// Keys of one optimizer that another would not look at.
void check_optimizer(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const OptimConfig& o = config.optim;
  const OptimConfig none;
  const auto refuse = [&](bool is_set, bool is_used, const char* key, const char* users) {
    if (!is_set || is_used) return;
    conflicts.push_back(
        {{key}, fmt::format("{} is only used by {}; remove it or change optim.name", key, users)});
  };
  const bool is_sgd = o.name == planner::Updates::sgd, is_muon = o.name == planner::Updates::muon;
  refuse(o.momentum.has_value(), is_sgd || is_muon, "optim.momentum", "sgd and muon");
  refuse(o.nesterov.has_value(), is_sgd || is_muon, "optim.nesterov", "sgd and muon");
  refuse(o.dampening != none.dampening, is_sgd, "optim.dampening", "sgd");
  refuse(o.muon_lr.has_value(), is_muon, "optim.muon_lr", "muon");
  refuse(o.muon_scale != none.muon_scale, is_muon, "optim.muon_scale", "muon");
  refuse(o.newton_schulz_steps != none.newton_schulz_steps, is_muon, "optim.newton_schulz_steps",
         "muon");
  const bool is_onebit = o.name == planner::Updates::onebit_adam;
  refuse(o.freeze_step.has_value(), is_onebit, "optim.freeze_step", "onebit-adam");
  refuse(o.freeze_ratio != none.freeze_ratio, is_onebit, "optim.freeze_ratio", "onebit-adam");
  refuse(o.freeze_mask != none.freeze_mask, is_onebit, "optim.freeze_mask", "onebit-adam");
  if (is_onebit) check_onebit(config, conflicts);
  if (is_sgd && o.uses_nesterov() && o.used_momentum() == 0.0) {
    conflicts.push_back({{"optim.nesterov"},
                         "optim.nesterov looks ahead along the momentum, and sgd has none; set "
                         "optim.momentum (0.9 is usual), or nesterov = false"});
  }
  if (is_sgd && o.uses_nesterov() && o.dampening > 0.0) {
    conflicts.push_back({{"optim.dampening", "optim.nesterov"},
                         fmt::format("optim.nesterov and optim.dampening = {} exclude each other; "
                                     "set one of them",
                                     o.dampening)});
  }
  if (is_sgd && o.dampening > 0.0 && o.used_momentum() == 0.0) {
    conflicts.push_back({{"optim.dampening"},
                         "optim.dampening is a part of the momentum, and sgd has none; set "
                         "optim.momentum or remove it"});
  }
  if (is_muon && o.muon_lr && *o.muon_lr > 0.0 && o.lr == 0.0) {
    conflicts.push_back(
        {{"optim.muon_lr"},
         fmt::format("optim.muon_lr = {} follows optim.lr, which is 0; set optim.lr "
                     "above 0",
                     *o.muon_lr)});
  }
}

/// Of the codec that sites use.
void check_outer_codec(const OuterConfig& outer, std::vector<Conflict>& conflicts) {
  if (outer.codec == "none") {
    if (outer.used_feedback() == 0.0) return;
    conflicts.push_back({{"outer.feedback"},
                         fmt::format("outer.feedback = {} is of what outer.codec leaves out, and "
                                     "\"none\" leaves out nothing; remove it or choose a codec",
                                     outer.used_feedback())});
    return;
  }
  try {
    if (codec::make_codec(outer.codec)->is_lossless()) {
      conflicts.push_back({{"outer.codec"},
                           fmt::format("outer.codec = \"{}\" has no size that sites could agree "
                                       "on beforehand; use \"none\", which is as exact",
                                       outer.codec)});
    }
  } catch (const Error& error) {
    conflicts.push_back({{"outer.codec"},
                         fmt::format("outer.codec: {}{}{}", error.message(),
                                     error.hint().empty() ? "" : "; ", error.hint())});
    return;
  }
  if (outer.is_sparse() && outer.used_feedback() == 0.0) {
    conflicts.push_back({{"outer.feedback"},
                         fmt::format("outer.codec = \"{}\" leaves out most of what is to be sent, "
                                     "and outer.feedback = 0 forgets it; use 0.95",
                                     outer.codec)});
  }
}

void check_exchange(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const ExchangeRequest& exchange = config.parallel.ep_exchange;
  if (exchange.plans_windows() && config.parallel.zero > 1) {
    conflicts.push_back(
        {{"parallel.ep_exchange", "parallel.zero"},
         fmt::format("parallel.ep_exchange = \"{}\" keeps gradients until the network is idle, and "
                     "parallel.zero = {} gives them back at once; use parallel.zero = 1, or leave "
                     "out windows=planned",
                     exchange.text(), config.parallel.zero)});
  }
  if (exchange.plans_windows() && config.parallel.schedule == Pipeline::routes) {
    conflicts.push_back(
        {{"parallel.ep_exchange", "parallel.schedule"},
         fmt::format("parallel.ep_exchange = \"{}\" counts on every micro-batch passing every "
                     "block, and parallel.schedule = \"routes\" lets some leave blocks out; use "
                     "another schedule, or leave out windows=planned",
                     exchange.text())});
  }
  if (!exchange.is_to_be_planned() || !config.observe.system.empty()) return;
  conflicts.push_back(
      {{"parallel.ep_exchange", "observe.system"},
       fmt::format("parallel.ep_exchange = \"{}\" chooses by the times of a machine file, and "
                   "observe.system names none; set it to what heddle doctor --calibrate wrote, or "
                   "{}",
                   exchange.text(),
                   exchange.leaves_degrees() ? "name degrees, as in degree=2/4"
                                             : "leave out windows=planned")});
}

/// What of dropping has no effect where nothing is dropped.
void check_drops(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const ModelConfig& model = config.model;
  const ModelConfig none;
  if (model.capacity_factor != 0.0) return;
  const auto refuse = [&](bool is_set, const char* key) {
    if (!is_set) return;
    conflicts.push_back({{key, "model.capacity_factor"},
                         fmt::format("{} says what is done where experts have no room, and with "
                                     "model.capacity_factor = 0 they take all; set a factor (1.25 "
                                     "is usual), or remove {}",
                                     key, key)});
  };
  refuse(model.drop != none.drop, "model.drop");
  refuse(model.renorm_after_drop, "model.renorm_after_drop");
}

void check_recut(const RunConfig& config, std::vector<Conflict>& conflicts) {
  if (!config.recover.recut || config.parallel.schedule != Pipeline::routes) return;
  conflicts.push_back(
      {{"recover.recut", "parallel.schedule"},
       "recover.recut = true moves blocks between stages, and parallel.schedule = \"routes\" has "
       "equal ones; use another schedule, or leave recover.recut out"});
}

void check_outer(const RunConfig& config, std::vector<Conflict>& conflicts) {
  const OuterConfig& outer = config.outer;
  if (config.parallel.sites == 1) return;
  if (outer.lost == OnLostSite::go_on && config.run.timeout == 0) {
    conflicts.push_back(
        {{"outer.lost", "run.timeout"},
         "outer.lost = \"go-on\" with run.timeout = 0 would wait for a lost site for "
         "ever; set the seconds after which a silent one is lost (600 is usual)"});
  }
  if (outer.lost == OnLostSite::go_on &&
      (config.checkpoint.every == 0 || !config.checkpoint.resume)) {
    conflicts.push_back({{"outer.lost", "checkpoint.every", "checkpoint.resume"},
                         "outer.lost = \"go-on\" goes on from the newest checkpoint; set "
                         "checkpoint.every above 0 and checkpoint.resume = true"});
  }
  if (outer.used_delay() >= outer.every) {
    conflicts.push_back(
        {{"outer.delay", "outer.every"},
         fmt::format("outer.delay = {} steps is not below outer.every = {}: an exchange must have "
                     "ended before the next begins; use 0 to {}",
                     outer.used_delay(), outer.every, outer.every - 1)});
  }
  if (outer.used_fragments() > outer.every) {
    conflicts.push_back({{"outer.fragments", "outer.every"},
                         fmt::format("outer.fragments = {} are more than the {} steps of "
                                     "outer.every that they are spread over; use at most {}",
                                     outer.used_fragments(), outer.every, outer.every)});
  }
  const std::int64_t first_meeting = std::int64_t{outer.every} + outer.used_delay();
  if (const std::int64_t steps = config.total_steps(); steps > 0 && steps < first_meeting) {
    conflicts.push_back(
        {{"train.steps", "outer.every"},
         fmt::format("with outer.every = {} and a delay of {} the {} steps of the run end before "
                     "sites have met, and outer weights would be those of the start; use at least "
                     "{} steps or a smaller outer.every",
                     outer.every, outer.used_delay(), steps, first_meeting)});
  }
  check_outer_codec(outer, conflicts);
}

}  // namespace

std::vector<Conflict> find_conflicts(const RunConfig& config, int ranks) {
  std::vector<Conflict> conflicts;
  check_model_source(config, conflicts);
  check_data(config, conflicts);
  check_chat_and_patience(config, conflicts);
  check_tuning(config, conflicts);
  check_length(config, conflicts);
  check_batch(config, conflicts);
  check_context(config, conflicts);
  check_learning_rate(config, conflicts);
  check_optimizer(config, conflicts);
  check_outer(config, conflicts);
  check_exchange(config, conflicts);
  check_drops(config, conflicts);
  check_recut(config, conflicts);
  for (RequestProblem& problem : problems_of(config.parallel, ranks)) {
    conflicts.push_back({std::move(problem.keys), std::move(problem.message)});
  }
  for (auto& [key, message] : problems_of(config.compress)) {
    conflicts.push_back({{key}, std::move(message)});
  }
  return conflicts;
}

}  // namespace heddle::config
