#include <set>

#include "base/log.h"
#include "base/strings.h"
#include "model/decoder.h"
#include "train/context_choices.h"
#include "train/data_use.h"
#include "train/lost_state.h"
#include "train/model_setup.h"
#include "train/plan_text.h"
#include "train/run_report.h"
#include "train/run_setup.h"

namespace heddle {
namespace {

/// What of a plan holds only if all ranks receive as many rows for their experts.
void print_experts(const RunSetup& setup) {
  if (setup.config.parallel.ep_exchange.leaves_degrees()) {
    const ExchangePlan exchange = setup.plan.ep_exchange.plan(setup.plan.etp);
    log_info("{:<11} rows in {} pieces forward and {} backward, planned from {}", "exchange",
             exchange.degree_forward, exchange.degree_backward,
             setup.config.observe.system.string());
  }
  if (!setup.plan.policy.windows.empty()) {
    std::int64_t with_experts = 0, with_rest = 0;
    for (const SumWindow& window : setup.plan.policy.windows) {
      with_experts += window.with_experts;
      with_rest += window.with_rest;
    }
    log_info(
        "{:<11} gradients' sums: {:.3g}M values beside experts, {:.3g}M beside the rest of "
        "their blocks, planned from {}",
        "windows", 1e-6 * static_cast<double>(with_experts), 1e-6 * static_cast<double>(with_rest),
        setup.config.observe.system.string());
  }
  const double most = most_expert_rows(setup.spec, setup.plan);
  log_info("{:<11} {}", "experts",
           most > 1 ? fmt::format("memory and traffic if all ranks receive as many rows; one may "
                                  "receive {:.3g} times as many ({})",
                                  most,
                                  setup.plan.ep_rows > 0 ? "parallel.ep_rows"
                                                         : "all tokens choosing its experts")
                    : "all ranks receive as many rows");
}

/// What of the model trains, where that is not all of it.
void print_tuning(const ModelSpec& spec) {
  if (spec.tuning.trains_all()) return;
  Memory memory(Memory::Mode::dry);
  const Decoder decoder = build_decoder(spec, {.positions = 1}, memory);
  std::set<const Parameter*> seen;
  std::int64_t trained = 0, all = 0;
  for (Layer* unit : decoder.unit_pointers()) {
    unit->visit([&](const Parameter& parameter) {
      if (!seen.insert(&parameter).second) return;
      all += parameter.shape.count();
      if (parameter.trains) trained += parameter.shape.count();
    });
  }
  log_info("{:<11} {}{} of {} parameters", "trains",
           spec.tuning.lora ? fmt::format("adapters of rank {}: ", spec.tuning.lora->rank) : "",
           format_thousands(trained), format_thousands(all));
}

/// Of a run that outlives its ranks where no other rank has what a lost one had; empty where one
/// has.
std::string cost_of_a_loss(const config::RunConfig& config, const MeshShape& mesh) {
  if (!config.recover.elastic || mesh.ranks() == 1 || others_have_all(config, mesh) ||
      config.recover.stages != config::LostStages::none) {
    return "";
  }
  if (mesh.size(Axis::site) > 1) {
    return "a rank that is lost takes along what its site has for itself, which then goes on with "
           "the weights and moments of another site; parallel.dp = 2 with parallel.zero = 0 keeps "
           "them in the site";
  }
  const bool are_whole = config.parallel.zero == 0;
  const std::string every = config.checkpoint.every > 0
                                ? fmt::format(", every {} steps", config.checkpoint.every)
                                : ", of which there is one at the end only (checkpoint.every = 0)";
  const bool would_be_whole = !are_whole && mesh.size({Axis::dp, Axis::cp}) > 1;
  return fmt::format(
      "a rank that is lost takes all back to the newest checkpoint{}, and ends the run before the "
      "first: no other rank has its {}; set recover.copies = 1{}",
      every,
      are_whole ? "part of the model"
                : fmt::format("optimizer states (parallel.zero = {})", config.parallel.zero),
      would_be_whole ? ", or parallel.zero = 0" : "");
}

void print_ranks(const std::vector<RunPlan::Group>& groups) {
  for (const auto& [first, last, stages, step, most] : groups) {
    const std::string ranks =
        first == last ? fmt::format("rank {}", first) : fmt::format("ranks {}-{}", first, last);
    log_info("{:<11} {}", ranks, stages);
    log_info("{:<11} {}", "  memory", describe(step.memory));
    if (most) {
      log_info("{:<11} {} if it receives the most rows", "  at most",
               format_bytes(static_cast<double>(most->peak)));
    }
    for (const std::string& line : describe_traffic(step.traffic, step.outer)) {
      log_info("{:<11} {}", "  sends", line);
    }
    if (!step.later) continue;
    for (const std::string& line : describe_traffic(step.later->traffic, {})) {
      log_info("{:<11} {}", "  frozen", line);
    }
  }
}

}  // namespace

void print_plan(const RunSetup& setup, const std::vector<RunPlan::Group>& groups) {
  const config::RunConfig& config = setup.config;
  const auto row = [](const char* key, const std::string& value) {
    log_info("{:<11} {}", key, value);
  };
  row("model", describe(setup.spec));
  print_tuning(setup.spec);
  const auto remark = vocabulary_remark(config, setup.spec, setup.tokenizer.tokenizer);
  if (!remark.empty()) row("vocabulary", remark);
  if (const auto beyond = beyond_positions(setup.spec, config.data.seq_len); !beyond.empty()) {
    log_warn("{}", beyond);
  }
  const DataUse use = describe_use(setup.data, config);
  for (const std::string& line : use.lines) row("data", line);
  row("step", fmt::format("{} tokens = {} micro-batches of {} x {}",
                          format_thousands(setup.tokens_per_step()), config.accumulation(),
                          config.train.microbatch, config.data.seq_len));
  const auto tokens = static_cast<double>(config.total_steps() * config.tokens_per_step());
  row("steps",
      fmt::format("{} ({} tokens)", format_thousands(config.total_steps()), format_count(tokens)));
  if (setup.predicted_seconds) {
    const bool freezes = config.optim.name == planner::Updates::onebit_adam;
    row("step time", fmt::format("{:.3g} s predicted from {}{}", *setup.predicted_seconds,
                                 config.observe.system.string(), freezes ? ", when frozen" : ""));
    if (const auto& sites = setup.predicted_sites) {
      row("sites",
          fmt::format("compute {:.1f} % of the time: of a step {:.3g} s waiting for other "
                      "sites, {:.3g} s for what they exchange",
                      100 * sites->utilisation, sites->waited_seconds, sites->work_seconds));
    }
  }
  if (setup.world.size() == 1) {
    row("memory", describe(groups.front().step.memory));
  } else {
    row("mesh", describe(setup.plan, setup.spec));
    for (const std::string& line :
         describe_context(context_choices(config, setup.spec, setup.plan))) {
      row("context", line);
    }
    if (setup.plan.divides_experts()) print_experts(setup);
    print_ranks(groups);
  }
  if (config.train.recompute == config::Recompute::block) {
    row("length", "limited by " + describe_length_limit(fullest(groups).step.memory));
  }
  row("run folder", setup.folder.string());
  for (const std::string& warning : use.warnings) log_warn("{}", warning);
  if (const auto loss = cost_of_a_loss(config, setup.plan.mesh); !loss.empty()) {
    log_warn("{}", loss);
  }
}

}  // namespace heddle
