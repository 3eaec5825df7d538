#include "train/run_identity.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/json.h"
#include "base/strings.h"
#include "data/encode.h"
#include "train/model_facts.h"
#include "train/model_setup.h"

namespace heddle {
namespace {

using config::Scope;

/// Keys that stand for each other are brought to one of them, and defaults that follow from others
/// are filled in: two files that mean the same become equal.
config::RunConfig resolved(const config::RunConfig& config, const ModelSpec& spec) {
  config::RunConfig result = config;
  result.model.seed = config.init_seed();
  result.data.seed = config.data_seed();
  result.model.init_std = spec.init_stddev;
  result.model.scale_residual_init = scales_residual_init(config.model, spec);
  if (spec.experts) {
    result.model.router_aux_loss = spec.experts->loss.balance;
    result.model.router_z_loss = spec.experts->loss.z;
    result.model.router_bias_rate = spec.experts->bias_rate;
  }
  if (const auto& lora = spec.tuning.lora) {
    result.lora.rank = lora->rank;
    result.lora.alpha = lora->alpha;
    result.lora.rslora = lora->is_rank_stabilized;
    result.lora.dropout = lora->dropout;
    result.lora.targets = lora->targets;
  }
  result.train.tokens_per_step = config.tokens_per_step();
  result.train.steps = config.total_steps();
  if (config.optim.name != planner::Updates::adamw) {
    result.optim.momentum = config.optim.used_momentum();
    result.optim.nesterov = config.optim.uses_nesterov();
  }
  if (config.optim.name == planner::Updates::muon) {
    result.optim.muon_lr = config.optim.muon_lr.value_or(config.optim.lr);
  }
  result.outer = {};
  if (config.parallel.sites > 1) {
    result.outer = config.outer;
    result.outer.fragments = config.outer.used_fragments();
    result.outer.delay = config.outer.used_delay();
    result.outer.mix = config.outer.used_mix();
    result.outer.lr = config.outer.used_lr();
    result.outer.momentum = config.outer.used_momentum();
    result.outer.feedback = config.outer.used_feedback();
  }
  return result;
}

std::string digest(std::uint64_t hash) { return fmt::format("xxh64 {:016x}", hash); }

std::string describe(const TokenFile& file) {
  return fmt::format("{} tokens, {}", format_thousands(file.token_count()),
                     digest(file.header().checksum));
}

std::string describe(const Dataset& data) {
  if (data.source_count() == 1) {
    return (data.is_streamed() ? "a stream that begins with " : "") + describe(data.file(0));
  }
  const std::vector<SourceUse> shares = data.use(0);
  std::vector<std::string> sources;
  for (int i = 0; i < data.source_count(); ++i) {
    sources.push_back(fmt::format("{} of ({})", shares[static_cast<std::size_t>(i)].weight,
                                  describe(data.file(i))));
  }
  return fmt::format("{}", fmt::join(sources, ", "));
}

}  // namespace

void RunIdentity::add(std::string name, std::string value, Scope scope) {
  facts_.push_back({std::move(name), std::move(value), scope});
}

void RunIdentity::add(const RunIdentity& other) {
  facts_.insert(facts_.end(), other.facts_.begin(), other.facts_.end());
}

Json RunIdentity::to_json() const {
  Json json = Json::object();
  for (const Fact& fact : facts_) json[fact.name] = fact.value;
  return json;
}

std::vector<RunIdentity::Difference> RunIdentity::differences_from(const Json& theirs) const {
  std::vector<Difference> found;
  for (const Fact& fact : facts_) {
    const auto at = theirs.find(fact.name);
    if (at == theirs.end() || !at->is_string()) continue;
    if (*at == fact.value) continue;
    found.push_back({fact.name, at->get<std::string>(), fact.value, fact.scope});
  }
  return found;
}

RunIdentity identity_of_start(const config::RunConfig& config, const ModelSpec& spec,
                              const RunTokenizer& tokenizer, const std::string& program_version) {
  RunIdentity identity;
  const config::RunConfig values = resolved(config, spec);
  for (const config::Key& key : config::keys()) {
    if (key.scope == Scope::derived || key.scope == Scope::process) continue;
    identity.add(key.full_name(), config::to_text(key, key.field.get(values)), key.scope);
  }
  add_model_facts(identity, spec);
  // Only a start reads them: a run that is resumed has weights of its own, but for adapters.
  identity.add("first weights",
               config.model.path.empty() ? "random" : weights_digest(config.model.path),
               spec.tuning.lora ? Scope::weights : Scope::launch);
  identity.add("tokenizer",
               tokenizer.path.empty() ? std::string(kNoTokenizer) : digest(tokenizer.fingerprint),
               Scope::weights);
  identity.add("program", "heddle " + program_version, Scope::launch);
  return identity;
}

RunIdentity identity_of(const RunData& data) {
  RunIdentity identity;
  identity.add("data.train", describe(*data.train), Scope::run);
  identity.add("data.eval", data.separate_eval ? describe(*data.separate_eval) : "held out",
               Scope::run);
  return identity;
}

std::pair<std::string, std::string> shown(const std::string& a, const std::string& b) {
  constexpr std::size_t kLine = 60, kBefore = 20;
  const auto differ = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const auto cut = [&](const std::string& text) {
    if (text.size() <= kLine) return text;
    const std::size_t begin = differ > kBefore ? differ - kBefore : 0;
    return fmt::format("{}{}{}", begin > 0 ? "..." : "", text.substr(begin, kLine),
                       begin + kLine < text.size() ? "..." : "");
  };
  return {cut(a), cut(b)};
}

}  // namespace heddle
