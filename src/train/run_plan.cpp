#include "train/run_plan.h"

#include <algorithm>

#include "train/model_setup.h"
#include "train/plan_text.h"

namespace heddle {
namespace {

JsonValue tags_json(const BytesByTag& bytes) {
  JsonValue json = JsonValue::object();
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    json[std::string(name_of(static_cast<MemoryTag>(tag)))] =
        static_cast<std::uint64_t>(bytes[tag]);
  }
  return json;
}

JsonValue traffic_json(MeshTraffic traffic) {
  JsonValue all = JsonValue::array();
  traffic.with(traffic, [&](const char* group, const CommCounts& counts, const CommCounts&) {
    for (std::size_t op = 0; op < kCommOps; ++op) {
      const auto& [calls, bytes, wire] = counts.by_op[op];
      if (calls == 0) continue;
      all.push_back({{"axis", group},
                     {"operation", name_of(static_cast<CommOp>(op))},
                     {"calls", calls},
                     {"payload_bytes", bytes},
                     {"wire_bytes", wire}});
    }
  });
  return all;
}

/// As traffic of all groups.
MeshTraffic between_sites(const CommCounts& counts) {
  MeshTraffic traffic;
  traffic.on(Axis::site) = counts;
  return traffic;
}

JsonValue group_json(const RunPlan::Group& group) {
  const MemoryPlan& memory = group.step.memory;
  JsonValue json = {{"first_rank", group.first_rank},
                    {"last_rank", group.last_rank},
                    {"stages", group.stages},
                    {"memory_bytes",
                     {{"peak", static_cast<std::uint64_t>(memory.peak)},
                      {"reserved", static_cast<std::uint64_t>(memory.reserved)},
                      {"kept_for_backward", static_cast<std::uint64_t>(memory.kept)},
                      {"at_peak", tags_json(memory.at_peak)}}},
                    {"traffic", traffic_json(group.step.traffic)}};
  if (group.most) {
    json["memory_bytes"]["peak_at_most"] = static_cast<std::uint64_t>(group.most->peak);
    json["memory_bytes"]["reserved_at_most"] = static_cast<std::uint64_t>(group.most->reserved);
  }
  if (group.step.later) json["traffic_when_frozen"] = traffic_json(group.step.later->traffic);
  return json;
}

JsonValue mesh_json(const ParallelPlan& plan) {
  JsonValue json = {{"sites", plan.mesh.size(Axis::site)},
                    {"dp", plan.mesh.size(Axis::dp)},
                    {"tp", plan.mesh.size(Axis::tp)},
                    {"pp", plan.mesh.size(Axis::pp)},
                    {"cp", plan.mesh.size(Axis::cp)},
                    {"ep", plan.mesh.size(Axis::ep)},
                    {"etp", plan.mesh.size(Axis::etp)},
                    {"ranks", plan.mesh.ranks()},
                    {"zero", plan.zero},
                    {"sequence", plan.sequence},
                    {"schedule", name_of(plan.schedule)},
                    {"stages", plan.stages()}};
  if (plan.divides_experts()) json["ep_exchange"] = plan.ep_exchange.plan(plan.etp).text();
  if (!plan.policy.windows.empty()) {
    JsonValue& windows = json["sum_windows"] = JsonValue::array();
    for (const auto& [with_experts, with_rest] : plan.policy.windows) {
      windows.push_back({{"with_experts", with_experts}, {"with_rest", with_rest}});
    }
  }
  return json;
}

}  // namespace

const RunPlan::Group& fullest(const std::vector<RunPlan::Group>& groups) {
  return *std::ranges::max_element(
      groups, {}, [](const RunPlan::Group& group) { return group.step.memory.reserved; });
}

StepPlan plan_rank(const config::RunConfig& config, const ModelSpec& spec,
                   const ParallelPlan& parallel, int rank, Device device,
                   const std::vector<int>& left_out) {
  StepPlan plan = plan_step(spec, build_options(config, spec), parallel, rank,
                            {.sequences = config.train.microbatch,
                             .seq_len = config.data.seq_len,
                             .microbatches = static_cast<int>(config.accumulation())},
                            {.device = device,
                             .deterministic = config.run.deterministic,
                             .optimizer = optimizer_config(config.optim),
                             .copies = kept_copies(config),
                             .left_out = left_out});
  if (device.kind != Device::Kind::cpu) return plan;
  // The plan runs a step; the loader holds micro-batches of the next one meanwhile.
  constexpr std::size_t kTensors = 4;  // of a MicroBatch
  const auto tokens = static_cast<std::size_t>(config.train.microbatch * config.data.seq_len);
  const std::size_t bytes = static_cast<std::size_t>(config.data.prefetch) * kTensors *
                            Memory::rounded_bytes(tokens * sizeof(std::int32_t));
  plan.memory.at_peak[static_cast<std::size_t>(MemoryTag::data)] += bytes;
  plan.memory.peak += bytes;
  plan.memory.reserved += bytes;
  return plan;
}

namespace {

/// That layers may have in the run, as far as memory goes: by where rows and weights meet.
std::vector<ExchangeRequest> tried_exchanges(const ParallelPlan& parallel) {
  const ExchangeRequest& asked = parallel.ep_exchange;
  if (!asked.learns() && !asked.takes_turns()) return {asked};
  std::vector<int> rs = divisors_of(parallel.etp);
  rs.push_back(0);
  std::vector<ExchangeRequest> tried;
  for (const int r : rs) {
    ExchangePlan plan = asked.plan(parallel.etp);
    plan.r = r;
    plan.sends_again = plan.sends_again && r > 0;
    tried.emplace_back(plan, parallel.etp);
  }
  return tried;
}

/// Of a step in which the rank receives as many rows as it may. Where layers try exchanges, what
/// one of these keeps may be there while another works.
std::optional<MemoryPlan> most_memory(const config::RunConfig& config, const ModelSpec& spec,
                                      const ParallelPlan& parallel, int rank, Device device) {
  if (!parallel.divides_experts()) return {};
  ParallelPlan uneven = parallel;
  uneven.planned_expert_rows = most_expert_rows(spec, parallel);
  const std::vector<ExchangeRequest> tried = tried_exchanges(parallel);
  if (tried.size() == 1 && uneven.planned_expert_rows <= 1) return {};
  std::optional<MemoryPlan> most;
  std::size_t working = 0, reserved = 0;  // beside what is kept
  for (const ExchangeRequest& exchange : tried) {
    uneven.ep_exchange = exchange;
    const MemoryPlan one = plan_rank(config, spec, uneven, rank, device).memory;
    working = std::max(working, one.peak - one.kept);
    reserved = std::max(reserved, one.reserved - one.kept);
    if (!most || one.kept > most->kept) most = one;
  }
  most->peak = most->kept + working;
  most->reserved = most->kept + reserved;
  return most;
}

}  // namespace

std::vector<RunPlan::Group> plan_groups(const config::RunConfig& config, const ModelSpec& spec,
                                        const ParallelPlan& parallel, Device device) {
  const int pipeline = parallel.mesh.size(Axis::pp), size = parallel.mesh.size(kStageAxes);
  std::vector<RunPlan::Group> groups;
  const int tp = parallel.mesh.size(Axis::tp), cp = parallel.mesh.size(Axis::cp);
  for (int pp = 0; pp < pipeline; ++pp) {
    groups.push_back({.first_rank = pp * size,
                      .last_rank = (pp + 1) * size - 1,
                      .stages = describe_stages(parallel, spec, pp),
                      .step = plan_rank(config, spec, parallel, pp * size, device)});
    for (int i = 1; i < cp; ++i) {
      StepPlan other = plan_rank(config, spec, parallel, pp * size + i * tp, device);
      StepPlan& fullest = groups.back().step;
      if (other.memory.reserved > fullest.memory.reserved) fullest = std::move(other);
    }
    groups.back().most = most_memory(config, spec, parallel, pp * size, device);
  }
  return groups;
}

JsonValue to_json(const RunPlan& plan) {
  JsonValue json = {{"dry_run", true},
                    {"model", plan.model},
                    {"parameters", plan.parameters},
                    {"mesh", mesh_json(plan.parallel)},
                    {"steps", plan.steps},
                    {"tokens_per_step", plan.tokens_per_step},
                    {"microbatches", plan.microbatches},
                    {"microbatch", {{"sequences", plan.sequences}, {"seq_len", plan.seq_len}}},
                    {"predicted_step_seconds", nullptr},
                    {"memory_limit_bytes", nullptr},
                    {"fits", !plan.refusal.has_value()},
                    {"ranks", JsonValue::array()}};
  if (plan.step_seconds) json["predicted_step_seconds"] = *plan.step_seconds;
  if (plan.sites) {
    json["predicted_sites"] = {{"inner_seconds", plan.sites->inner_seconds},
                               {"waited_seconds", plan.sites->waited_seconds},
                               {"work_seconds", plan.sites->work_seconds},
                               {"utilisation", plan.sites->utilisation},
                               {"sent_bytes_per_step", plan.sites->sent_bytes}};
  }
  if (plan.limit_bytes > 0) json["memory_limit_bytes"] = plan.limit_bytes;
  if (plan.refusal) {
    json["problem"] = plan.refusal->message();
    json["hint"] = plan.refusal->hint();
  }
  if (!plan.context.empty()) json["context"] = to_json(plan.context);
  for (const RunPlan::Group& group : plan.groups) {
    JsonValue ranks = group_json(group);
    if (plan.parallel.sites > 1) {
      ranks["traffic_between_sites"] = traffic_json(between_sites(group.step.outer));
    }
    json["ranks"].push_back(std::move(ranks));
  }
  return json;
}

}  // namespace heddle
