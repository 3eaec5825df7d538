#include "planner/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/json_value.h"
#include "base/strings.h"
#include "planner/advice.h"
#include "planner/link_text.h"
#include "planner/step_units.h"

namespace heddle::planner {
namespace {

constexpr int kFinalists = 16, kNearMisses = 6;

/// How many devices would about do; of more than a job can be divided over none would.
std::string devices_hint(const PlanReport& report) {
  const Job& job = report.job;
  const double wanted = std::ceil(report.options.gpus * report.result.smallest.memory.total() /
                                  report.result.limit_bytes);
  const double most = static_cast<double>(job.spec.heads * job.spec.layers * job.batch) *
                      static_cast<double>(most_context(job));
  if (wanted <= most) {
    return fmt::format(
        "every tp, cp, pp,{} ZeRO stage, micro-batch and recomputation was tried: use about {:.0f} "
        "devices, shorter sequences, or a smaller --margin",
        job.spec.experts ? " ep, etp," : "", wanted);
  }
  return fmt::format(
      "no number of devices is enough: a step of {} sequences can be divided over {:.0f} at most; "
      "use shorter sequences or devices with more memory",
      job.batch, most);
}

std::string parts_text(const MemoryEstimate& memory) {
  return fmt::format(
      "parameters {}, gradients {}, optimizer {}, activations {}, of which {} are kept for "
      "backward, reserved {}",
      format_bytes(memory.parameters), format_bytes(memory.gradients),
      format_bytes(memory.optimizer), format_bytes(memory.activations), format_bytes(memory.kept),
      format_bytes(memory.reserved));
}

[[noreturn]] void refuse_too_large(const PlanReport& report) {
  const Found& smallest = report.result.smallest;
  const double need = smallest.memory.total(), limit = report.result.limit_bytes;
  throw Error(
      ErrorCode::resources,
      fmt::format("{} does not fit on {} x {}: the smallest layout ({}) needs {} on its fullest "
                  "device, {:.1f} times the {} that are there when {:.0f} % stay free ({})",
                  report.model, report.options.gpus, report.machine.device.name,
                  describe(smallest.candidate), format_bytes(need), need / limit,
                  format_bytes(limit), 100 * report.options.margin, parts_text(smallest.memory)),
      devices_hint(report));
}

/// Near misses are compared by the closed form, finalists by their simulated steps: where the two
/// disagree about who is faster, that is said.
std::string why_missed(const PlanReport& report, const Found& found) {
  const Finalist& taken = report.plans.front();
  if (found.time.total >= taken.found.time.total) return why_slower(found.time, taken.found.time);
  const std::string own = describe(found.candidate);
  const auto same = std::ranges::find_if(report.plans, [&](const Finalist& plan) {
    return plan.is_simulated && describe(plan.found.candidate) == own;
  });
  if (same == report.plans.end()) {
    return fmt::format("by the formula faster than the best plan ({:.3f} s), not simulated",
                       taken.found.time.total);
  }
  return same->seconds >= taken.seconds
             ? fmt::format("faster by the formula, slower when simulated ({:.3f} s)", same->seconds)
             : why_not_taken(*same, taken);
}

void add_near_misses(PlanReport& report) {
  const Found& winner = report.plans.front().found;
  for (const Found& found : report.result.too_large) {
    if (static_cast<int>(report.near_misses.size()) == kNearMisses / 2) break;
    if (found.memory.total() > 1.5 * report.result.limit_bytes) continue;
    report.near_misses.push_back(
        {found, fmt::format("does not fit: needs {} of {}", format_bytes(found.memory.total()),
                            format_bytes(report.result.limit_bytes))});
  }
  for (const Found& found : report.result.by_mesh) {
    if (static_cast<int>(report.near_misses.size()) == kNearMisses) break;
    const Candidate& other = found.candidate;
    const Candidate& taken = winner.candidate;
    if (other.tp == taken.tp && other.cp == taken.cp && other.pp == taken.pp) continue;
    report.near_misses.push_back({found, why_missed(report, found)});
  }
}

void add_mapping(PlanReport& report) {
  const Machine& machine = report.machine;
  const Candidate& plan = report.plans.front().found.candidate;
  const int servers = static_cast<int>(machine.pairs.size());
  if (servers == 0) return;
  if (servers * machine.server_size() != plan.gpus()) {
    throw Error(
        ErrorCode::usage,
        fmt::format("the machine file's [pairs] has {} servers of {} devices, not {} devices",
                    servers, machine.server_size(), plan.gpus()),
        "measure the servers that will be used, or remove [pairs]");
  }
  if (plan.pp == 1 || servers % plan.pp != 0) return;
  const Job& job = report.job;
  const BlockCost block = block_cost(machine, job, plan);
  const PlacementProblem problem{.bytes_per_s = machine.pairs,
                                 .stages = plan.pp,
                                 .message_bytes = block.stride_bytes,
                                 .gradient_bytes = report.plans.front().found.memory.gradients};
  constexpr int kSteps = 20000, kStarts = 4;
  PlanReport::Mapping mapping;
  std::vector<int> in_order;
  for (int i = 0; i < servers; ++i) in_order.push_back(i);
  mapping.in_order_seconds = placement_seconds(problem, in_order);
  mapping.placement = {in_order, mapping.in_order_seconds};
  for (std::uint64_t seed = 0; seed < kStarts; ++seed) {
    const Placement tried = anneal_placement(problem, kSteps, seed);
    if (tried.seconds < mapping.placement.seconds) mapping.placement = tried;
  }
  report.mapping = mapping;
}

/// Memory is planned for even shares: said is what the worst routing takes.
void add_most_rows(PlanReport& report) {
  const Candidate& plan = report.plans.front().found.candidate;
  if (!plan.divides_experts()) return;
  const Job& job = report.job;
  const bool rows_travel = plan.ep_exchange.plan(plan.etp).r > 0;
  PlanReport::MostRows most{.times = rows_travel ? most_expert_rows(job.spec, plan) : 1.0};
  most.memory =
      estimate_memory(report.machine, job, plan,
                      split_blocks(job, plan.schedule, plan.pp, plan.chunks, plan.vocabulary),
                      activations(job, plan, dry_blocks(job, plan, most.times)));
  report.most_rows = most;
}

// ---- Text ---------------------------------------------------------------------------------------

std::string winner_text(const PlanReport& report) {
  const Finalist& best = report.plans.front();
  const TimeEstimate& time = best.found.time;
  std::string text = fmt::format("best plan: {}\n", describe(best.found.candidate));
  text += fmt::format(
      "  step        {:.3g} s, two runs in three from {:.3g} to {:.3g} s; {} tokens/s, MFU {:.1f} "
      "%\n",
      best.seconds, best.seconds * (1 - time.spread), best.seconds * (1 + time.spread),
      format_count(report.tokens_per_step() / best.seconds),
      100 * model_flops_utilization(report, best.seconds));
  text += fmt::format(
      "  of this     computation {:.3g} s ({:.3g} again), bubble {:.3g} s, tp {:.3g} s, {}{}pp "
      "{:.3g} s, dp {:.3g} s ({:.3g} more are hidden), optimizer {:.3g} s, slowest rank {:.3g} s\n",
      time.compute, time.recompute, time.bubble, time.tp,
      time.cp > 0.0 ? fmt::format("cp {:.3g} s, ", time.cp) : "",
      time.ep > 0.0 ? fmt::format("ep {:.3g} s, ", time.ep) : "", time.pp, time.dp, time.dp_hidden,
      time.step, time.stragglers);
  if (report.job.stack.sends_signs()) {
    text +=
        "  phase       behind freezing, when ranks exchange signs; until then steps are adamw's\n";
  }
  const MemoryEstimate& memory = best.found.memory;
  text += fmt::format("  fullest rank {}: {}\n", format_bytes(memory.total()), parts_text(memory));
  if (const std::string most = most_rows_text(report); !most.empty()) {
    text += fmt::format("  experts     {}\n", most);
  }
  if (const std::string why = why_taken(report.plans); !why.empty()) {
    text += fmt::format("  taken       although {}\n", why);
  }
  if (const std::string why = why_context(report); !why.empty()) {
    text += fmt::format("  cp          {}\n  method      in the attention of a block, {}\n", why,
                        why_method(report.methods));
  }
  if (report.mapping) {
    text += fmt::format("  servers     {} (messages and gradients {:.3g} s, in order {:.3g} s)\n",
                        fmt::join(report.mapping->placement.servers, " "),
                        report.mapping->placement.seconds, report.mapping->in_order_seconds);
  }
  return text;
}

// ---- JSON ---------------------------------------------------------------------------------------

JsonValue candidate_json(const Candidate& plan) {
  JsonValue json = {{"tp", plan.tp},
                    {"cp", plan.cp},
                    {"pp", plan.pp},
                    {"dp", plan.dp},
                    {"schedule", name_of(plan.schedule)},
                    {"chunks", plan.chunks},
                    {"microbatch", plan.sequences},
                    {"zero", plan.zero},
                    {"sequence", plan.sequence},
                    {"vocabulary", name_of(plan.vocabulary)},
                    {"recompute", plan.recompute == Recompute::full ? "block" : "none"}};
  if (plan.cp > 1) {
    json["context"] = name_of(plan.context);
    json["context_heads"] = plan.context_heads;
  }
  if (plan.divides_experts()) {
    json["ep"] = plan.ep;
    json["etp"] = plan.etp;
    json["ep_exchange"] = plan.ep_exchange.plan(plan.etp).text();
  }
  return json;
}

JsonValue methods_json(const std::vector<ContextCost>& methods) {
  JsonValue json = JsonValue::array();
  for (const ContextCost& cost : methods) {
    json.push_back({{"context", name_of(cost.method)},
                    {"context_heads", cost.context_heads},
                    {"seconds", cost.seconds},
                    {"exposed_seconds", cost.exposed_f + cost.exposed_b},
                    {"sent_bytes", cost.sent_bytes}});
  }
  return json;
}

JsonValue memory_json(const MemoryEstimate& memory) {
  return {{"total", memory.total()},           {"parameters", memory.parameters},
          {"gradients", memory.gradients},     {"optimizer", memory.optimizer},
          {"activations", memory.activations}, {"kept_for_backward", memory.kept},
          {"reserved", memory.reserved}};
}

JsonValue time_json(const TimeEstimate& time) {
  JsonValue json = {{"computation", time.compute}, {"recomputation", time.recompute},
                    {"bubble", time.bubble},       {"tp_exposed", time.tp},
                    {"cp_exposed", time.cp},       {"pp_exposed", time.pp},
                    {"dp_exposed", time.dp},       {"dp_hidden", time.dp_hidden},
                    {"optimizer", time.step},      {"slowest_rank", time.stragglers}};
  if (time.ep > 0.0) json["ep_exposed"] = time.ep;
  return json;
}

JsonValue communication_json(const PlanReport& report, const Candidate& plan) {
  JsonValue all = JsonValue::array();
  for (const auto& [axis, operation, calls, bytes, wire] : traffic_of(report, plan)) {
    all.push_back({{"axis", axis},
                   {"operation", operation},
                   {"calls", calls},
                   {"payload_bytes", bytes},
                   {"wire_bytes", wire},
                   {"mean_bytes", static_cast<double>(wire) / static_cast<double>(calls)}});
  }
  return all;
}

JsonValue finalist_json(const PlanReport& report, const Finalist& plan) {
  JsonValue json = candidate_json(plan.found.candidate);
  const double spread = plan.found.time.spread;
  json["step_seconds"] = plan.seconds;
  json["step_seconds_low"] = plan.seconds * (1 - spread);
  json["step_seconds_high"] = plan.seconds * (1 + spread);
  json["tokens_per_second"] = report.tokens_per_step() / plan.seconds;
  json["mfu"] = model_flops_utilization(report, plan.seconds);
  json["simulated"] = plan.is_simulated;
  if (const std::string why = why_not_taken(plan, report.plans.front()); !why.empty()) {
    json["not_taken"] = why;
  }
  if (plan.is_simulated) json["bubble_fraction"] = plan.bubble_fraction;
  json["seconds"] = time_json(plan.found.time);
  json["memory_bytes"] = memory_json(plan.found.memory);
  json["communication"] = communication_json(report, plan.found.candidate);
  return json;
}

}  // namespace

std::string most_rows_text(const PlanReport& report) {
  if (!report.most_rows) return "";
  const auto& [times, memory] = *report.most_rows;
  if (times <= 1.0) return "all ranks compute as many rows, whatever tokens choose";
  return fmt::format(
      "memory if all ranks receive as many rows; one may receive {:.3g} times as many (all tokens "
      "choosing its experts), then {} at most; parallel.ep_rows bounds it",
      times, format_bytes(memory.total()));
}

std::string why_context(const PlanReport& report) {
  const Found& taken = report.plans.front().found;
  if (taken.candidate.cp == 1) return "";
  const auto& by_mesh = report.result.by_mesh;
  const auto whole =
      std::ranges::find_if(by_mesh, [](const Found& found) { return found.candidate.cp == 1; });
  if (whole == by_mesh.end()) return "no layout fits whose ranks have whole sequences";
  const double times = whole->time.total / taken.time.total;
  return fmt::format(
      "the fastest layout whose ranks have whole sequences takes {:.3g} s by the formula, {:.2f} "
      "times as long ({})",
      whole->time.total, times, describe(whole->candidate));
}

double model_flops_utilization(const PlanReport& report, double seconds) {
  const Job& job = report.job;
  const double flops = training_flops_per_token(job.spec, job.seq_len) * report.tokens_per_step();
  return flops /
         (seconds * report.options.gpus * report.machine.device.matrix_rate(job.stack.compute));
}

std::vector<AxisTraffic> traffic_of(const PlanReport& report, const Candidate& plan) {
  const Job& job = report.job;
  const Schedule schedule = step_schedule(plan, plan.microbatches(job));
  const StepUnits units = step_units(report.machine, job, plan,
                                     block_cost(report.machine, job, plan), schedule.rank_of_stage);
  MeshTraffic traffic =
      step_traffic(schedule, 0, units.ranks.front().units, units.policy, units.mesh, units.sizes);
  traffic.groups += units.ranks.front().matrices.traffic;
  std::vector<AxisTraffic> all;
  traffic.with(traffic, [&](const char* group, const CommCounts& counts, const CommCounts&) {
    for (int op = 0; op < kCommOps; ++op) {
      const auto& [calls, bytes, wire] = counts.by_op[static_cast<std::size_t>(op)];
      if (calls > 0) {
        all.push_back({group, std::string(name_of(static_cast<CommOp>(op))), calls, bytes, wire});
      }
    }
  });
  return all;
}

PlanReport make_report(const std::string& model, const Machine& given, const Job& job,
                       const SearchOptions& options, const std::optional<GivenLinks>& links) {
  const Machine machine = (links ? with_links(given, *links) : given).at_work(options.gpus);
  PlanReport report{.model = model,
                    .machine = machine,
                    .job = job,
                    .options = options,
                    .result = {},
                    .plans = {},
                    .near_misses = {},
                    .advice = {},
                    .methods = {},
                    .mapping = {}};
  const auto start = std::chrono::steady_clock::now();
  report.result = search(machine, job, options);
  report.search_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (report.result.best.empty()) refuse_too_large(report);
  report.plans = choose_finalists(machine, job, report.result, kFinalists);
  add_near_misses(report);
  const Candidate& taken = report.plans.front().found.candidate;
  if (taken.cp > 1) report.methods = compare_methods(machine, job, taken);
  report.advice = shape_advice(machine, job, taken);
  add_mapping(report);
  add_most_rows(report);
  if (links) {
    report.links =
        compare_links(machine, job, options, report.result, report.plans.front(), *links);
  }
  return report;
}

std::string report_text(const PlanReport& report) {
  std::string text = fmt::format("{} on {} x {} ({})\n{} sequences of {} tokens per step\n{}\n{}\n",
                                 report.model, report.options.gpus, report.machine.device.name,
                                 report.machine.name, report.job.batch, report.job.seq_len,
                                 report.job.compress.is_none()
                                     ? ""
                                     : fmt::format("compressed: {}\n", report.job.compress.text()),
                                 winner_text(report));
  if (report.links) text += links_text(*report.links) + "\n";
  text += fmt::format("{:>9} {:>6} {:>10} {:>7}  {}\n", "step", "MFU", "memory", "bubble", "plan");
  for (std::size_t i = 0; i < std::min(kPlansShown, report.plans.size()); ++i) {
    const Finalist& plan = report.plans[i];
    const std::string why = why_not_taken(plan, report.plans.front());
    text += fmt::format("{:>7.3f} s {:>4.1f} % {:>10} {:>5.1f} %  {}{}{}\n", plan.seconds,
                        100 * model_flops_utilization(report, plan.seconds),
                        format_bytes(plan.found.memory.total()), 100 * plan.bubble_fraction,
                        describe(plan.found.candidate), plan.is_simulated ? "" : " (not simulated)",
                        why.empty() ? "" : fmt::format(" ({})", why));
  }
  if (!report.near_misses.empty()) text += "\nnear misses, by the formula:\n";
  for (const auto& [found, reason] : report.near_misses) {
    text +=
        fmt::format("{:>7.3f} s  {}: {}\n", found.time.total, describe(found.candidate), reason);
  }
  if (!report.advice.empty()) text += "\nshapes:\n";
  for (const std::string& line : report.advice) text += fmt::format("  {}\n", line);
  text += fmt::format("\n{} layouts in {}, {} fit with {:.0f} % of memory left free\n",
                      format_thousands(static_cast<std::int64_t>(report.result.evaluated)),
                      format_duration(report.search_seconds),
                      format_thousands(static_cast<std::int64_t>(report.result.fitting)),
                      100 * report.options.margin);
  return text;
}

JsonValue report_json(const PlanReport& report) {
  JsonValue json = {{"model", report.model},
                    {"system", report.machine.name},
                    {"gpus", report.options.gpus},
                    {"batch_tokens", report.job.batch * report.job.seq_len},
                    {"seq_len", report.job.seq_len},
                    {"dtype", heddle::name_of(report.job.stack.compute)},
                    {"compressed", report.job.compress.text()},
                    {"evaluated", report.result.evaluated},
                    {"fitting", report.result.fitting},
                    {"search_seconds", report.search_seconds},
                    {"memory_margin", report.options.margin},
                    {"memory_limit_bytes", report.result.limit_bytes},
                    {"plans", JsonValue::array()},
                    {"near_misses", JsonValue::array()},
                    {"advice", report.advice}};
  if (const std::string why = why_taken(report.plans); !why.empty()) json["taken"] = why;
  for (const Finalist& plan : report.plans) json["plans"].push_back(finalist_json(report, plan));
  for (const auto& [found, reason] : report.near_misses) {
    JsonValue miss = candidate_json(found.candidate);
    miss["step_seconds"] = found.time.total;
    miss["memory_bytes"] = found.memory.total();
    miss["reason"] = reason;
    json["near_misses"].push_back(miss);
  }
  if (const std::string why = why_context(report); !why.empty()) {
    json["why_cp"] = why;
    json["context_methods"] = methods_json(report.methods);
  }
  if (report.most_rows) {
    json["experts"] = {{"most_rows", report.most_rows->times},
                       {"memory_bytes_at_most", report.most_rows->memory.total()}};
  }
  if (report.links) json["links"] = links_json(*report.links);
  if (report.mapping) {
    json["servers"] = {{"order", report.mapping->placement.servers},
                       {"seconds", report.mapping->placement.seconds},
                       {"in_order_seconds", report.mapping->in_order_seconds}};
  }
  return json;
}

namespace {

std::string context_toml(const Candidate& plan) {
  if (plan.cp == 1) return "";
  std::string text = fmt::format("cp = {}\ncontext = \"{}\"\n", plan.cp, name_of(plan.context));
  if (plan.context_heads > 0) text += fmt::format("context_heads = {}\n", plan.context_heads);
  return text;
}

std::string experts_toml(const Candidate& plan) {
  if (!plan.divides_experts()) return "";
  std::string text = fmt::format("ep = {}\n", plan.ep);
  if (plan.etp > 1) text += fmt::format("etp = {}\n", plan.etp);
  if (!plan.ep_exchange.is_usual()) {
    text += fmt::format("ep_exchange = \"{}\"\n", plan.ep_exchange.text());
  }
  return text;
}

std::string outer_toml(const OuterPolicy& outer) {
  if (outer.every == 0) return "";
  return fmt::format(
      "\n[outer]\nevery = {}\nfragments = {}\ndelay = {}\nmix = {}\ncodec = \"{}\"\n", outer.every,
      outer.fragments, outer.delay, outer.mix, outer.codec ? outer.codec->name() : "none");
}

std::string compress_toml(const Compression& compress) {
  if (compress.is_none()) return "";
  std::string text = "\n[compress]\n";
  for (const Compression::Kind kind : kCompressionKinds) {
    text += fmt::format("{} = \"{}\"\n", name_of(kind), compress.codec_name(kind));
  }
  return text + fmt::format("min_bytes = {}\nerror_feedback = {}\n", compress.min_bytes,
                            compress.feeds_back());
}

}  // namespace

std::string plan_toml(const PlanReport& report) {
  const LinkRow* const advised = report.links ? &report.links->best() : nullptr;
  const Candidate& plan = advised ? advised->plan : report.plans.front().found.candidate;
  const Job& job = advised ? advised->job : report.job;
  const Updates updates = job.stack.updates;
  return fmt::format(
      "# {} on {} x {}: {:.3g} s a step predicted.\n\n[data]\nseq_len = {}\n\n[train]\n"
      "tokens_per_step = {}\nmicrobatch = {}\nrecompute = \"{}\"\n\n{}[parallel]\n{}dp = {}\ntp = "
      "{}\n"
      "{}{}pp = {}\nzero = {}\nsequence = {}\nschedule = \"{}\"\nchunks = {}\nvocabulary = "
      "\"{}\"\n{}{}",
      report.model, report.options.gpus, report.machine.device.name,
      advised ? advised->seconds : report.plans.front().seconds, job.seq_len,
      report.job.batch * job.seq_len, plan.sequences,
      plan.recompute == Recompute::full ? "block" : "none",
      updates == Updates::adamw ? "" : fmt::format("[optim]\nname = \"{}\"\n\n", name_of(updates)),
      plan.sites > 1 ? fmt::format("sites = {}\n", plan.sites) : "", plan.dp, plan.tp,
      context_toml(plan), experts_toml(plan), plan.pp, plan.zero, plan.sequence,
      name_of(plan.schedule), plan.chunks, name_of(plan.vocabulary), compress_toml(job.compress),
      outer_toml(job.outer));
}

}  // namespace heddle::planner
