#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/json_value.h"
#include "base/strings.h"
#include "cli/job_options.h"
#include "cli/progress_line.h"
#include "cli/topology_options.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "config/load.h"
#include "model/parallel_plan.h"
#include "planner/finalists.h"
#include "planner/site_times.h"
#include "train/model_setup.h"

namespace heddle::cli {
namespace {

/// Pipeline ranks that the table shows.
constexpr std::size_t kRanksShown = 16;

/// An option that stands for a key of the run file, which checks and explains it.
struct KeyOption {
  const char* option;
  const char* key;
  const char* help;
};
constexpr std::array kKeyOptions = {
    KeyOption{"--sites", "parallel.sites", "replicas of all that meet seldom"},
    KeyOption{"--every", "outer.every", "of sites: steps between two exchanges of a fragment"},
    KeyOption{"--fragments", "outer.fragments", "of sites: parts that are exchanged in turn"},
    KeyOption{"--delay", "outer.delay", "of sites: steps that an exchange may travel"},
    KeyOption{"--outer-codec", "outer.codec", "of sites: how differences of weights travel"},
    KeyOption{"--tp", "parallel.tp", "tensor parallelism"},
    KeyOption{"--cp", "parallel.cp", "ranks that share each sequence"},
    KeyOption{"--context", "parallel.context", "how they share attention: ring, ulysses, ..."},
    KeyOption{"--context-order", "parallel.context_order", "which tokens they have"},
    KeyOption{"--context-heads", "parallel.context_heads", "of usp: ranks that divide heads"},
    KeyOption{"--pp", "parallel.pp", "pipeline ranks"},
    KeyOption{"--dp", "parallel.dp", "replicas; what the devices leave when absent"},
    KeyOption{"--zero", "parallel.zero", "ZeRO stage, 0 to 3"},
    KeyOption{"--sequence", "parallel.sequence", "true or false: norms split along the sequence"},
    KeyOption{"--schedule", "parallel.schedule", "of the pipeline"},
    KeyOption{"--chunks", "parallel.chunks", "stages per pipeline rank"},
    KeyOption{"--vocabulary", "parallel.vocabulary", "replicated, tensor or pipeline"},
    KeyOption{"--vocabulary-algorithm", "parallel.vocabulary_algorithm", "1 or 2"},
    KeyOption{"--overlap", "parallel.overlap",
              "true or false: exchange over dp under the computation"},
    KeyOption{"--microbatch", "train.microbatch", "sequences of a micro-batch"},
    KeyOption{"--recompute", "train.recompute", "none or block"}};

struct SimulateStepOptions {
  JobOptions job;
  std::filesystem::path system, plan, trace;
  std::string stack = "heddle";
  int gpus = 0;
  std::array<std::string, kKeyOptions.size()> keys;  ///< empty: not given
  std::vector<std::string> stragglers;
  bool varies = false;
  std::uint64_t seed = 0;
  TopologyOptions topology;
  bool json = false;
};

/// Everything that is simulated.
struct Subject {
  planner::Machine machine;
  planner::Job job;         ///< of one site
  planner::Candidate plan;  ///< of all
  planner::StepOptions step;

  double tokens_per_step() const {
    return static_cast<double>(plan.sites) * static_cast<double>(job.batch * job.seq_len);
  }
};

/// What was simulated: the step of a site, and what meeting others makes of it.
struct Simulated {
  planner::SimulatedStep step;
  std::optional<planner::SiteTimes> sites;

  double seconds() const { return sites ? sites->step_seconds : step.seconds; }
};

config::RunConfig settings_of(const SimulateStepOptions& options) {
  std::vector<std::string> overrides;
  for (std::size_t i = 0; i < kKeyOptions.size(); ++i) {
    if (options.keys[i].empty()) continue;
    overrides.push_back(fmt::format("{}={}", kKeyOptions[i].key, options.keys[i]));
  }
  return config::parse_settings(overrides, options.plan);
}

template <class Number>
bool parse_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

/// "12=1.5"
std::map<int, double> parse_stragglers(const std::vector<std::string>& words) {
  std::map<int, double> stragglers;
  for (const std::string& word : words) {
    const auto parts = split(word, '=');
    int device = 0;
    double factor = 0.0;
    if (parts.size() != 2 || !parse_number(parts[0], device) || !parse_number(parts[1], factor)) {
      throw Error(ErrorCode::usage,
                  fmt::format("--straggler {} is not a device and a factor", word),
                  "write --straggler 12=1.5 for device 12 that takes half as long again");
    }
    stragglers[device] = factor;
  }
  return stragglers;
}

void check_batch(const Subject& subject) {
  const planner::Candidate& plan = subject.plan;
  const std::int64_t at_once = static_cast<std::int64_t>(plan.dp) * plan.sequences;
  if (subject.job.batch % at_once == 0) return;
  const std::int64_t tokens =
      plan.sites * (subject.job.batch / at_once + 1) * at_once * subject.job.seq_len;
  throw Error(
      ErrorCode::usage,
      fmt::format("{} sequences per step{} cannot be divided over dp {} in micro-batches of {}",
                  subject.job.batch, plan.sites > 1 ? " of a site" : "", plan.dp, plan.sequences),
      fmt::format("use --batch-tokens {}, or another dp or micro-batch", tokens));
}

/// The job of one of the sites.
void divide_over_sites(Subject& subject, const config::RunConfig& settings) {
  const int sites = subject.plan.sites;
  if (sites == 1) return;
  for (const config::Conflict& conflict : config::find_conflicts(settings, subject.plan.gpus())) {
    const bool is_outer = std::ranges::any_of(
        conflict.keys, [](const std::string& key) { return key.starts_with("outer."); });
    if (is_outer) throw Error(ErrorCode::usage, conflict.message, "");
  }
  if (subject.job.batch % sites != 0) {
    throw Error(ErrorCode::usage,
                fmt::format("{} sequences per step cannot be divided over {} sites",
                            subject.job.batch, sites),
                fmt::format("use --batch-tokens {}",
                            (subject.job.batch / sites + 1) * sites * subject.job.seq_len));
  }
  subject.job.batch /= sites;
  subject.job.outer = outer_policy(settings.outer);
}

Subject subject_of(const SimulateStepOptions& options) {
  require_option(!options.job.model.empty(), "simulate step", "--model");
  require_option(!options.system.empty(), "simulate step", "--system");
  const config::RunConfig settings = settings_of(options);
  JobOptions job = options.job;
  if (job.batch_tokens == 0) job.batch_tokens = settings.train.tokens_per_step;
  if (job.seq_len == 0 && !options.plan.empty()) job.seq_len = settings.data.seq_len;
  if (job.optimizer.empty()) job.optimizer = planner::name_of(settings.optim.name);
  require_option(job.batch_tokens > 0, "simulate step", "--batch-tokens");
  const ParallelRequest& request = settings.parallel;
  const int gpus = options.gpus > 0 ? options.gpus : static_cast<int>(request.ranks());
  Subject subject{
      .machine = planner::read_machine(options.system),
      .job = make_job(job),
      .plan = {},
      .step = {.stragglers = parse_stragglers(options.stragglers), .seed = options.seed}};
  subject.job.compress = settings.compress;
  subject.job.stack.newton_schulz_steps = static_cast<int>(settings.optim.newton_schulz_steps);
  if (options.stack == "megatron") subject.job.stack = planner::Stack::megatron();
  const ParallelPlan plan =
      make_plan(subject.job.spec, request, gpus, subject.job.seq_len, false, settings.compress);
  subject.plan = {plan.request(),
                  settings.train.recompute == config::Recompute::block ? planner::Recompute::full
                                                                       : planner::Recompute::none,
                  static_cast<int>(settings.train.microbatch)};
  if (plan.cp > 1 && options.stack == "megatron") {
    throw Error(
        ErrorCode::usage,
        fmt::format("--stack megatron keeps the scores of whole sequences, so parallel.cp = "
                    "{} cannot be simulated with it",
                    plan.cp),
        "use --cp 1, or --stack heddle");
  }
  if (plan.cp > 1) subject.plan.context = context_shape(subject.job, subject.plan).method;
  subject.machine = subject.machine.at_work(gpus);
  if (options.varies) subject.step.variation = subject.machine.software.variation;
  divide_over_sites(subject, settings);
  check_batch(subject);
  return subject;
}

double mfu_of(const Subject& subject, double seconds) {
  const planner::Job& job = subject.job;
  const double flops = training_flops_per_token(job.spec, job.seq_len) * subject.tokens_per_step();
  return flops /
         (seconds * subject.plan.gpus() * subject.machine.device.matrix_rate(job.stack.compute));
}

// ---- JSON ---------------------------------------------------------------------------------------

constexpr std::array kTrafficNames = {"pp", "dp", "ends", "vocabulary"};

JsonValue times_json(const planner::StepTimes& times) {
  JsonValue json = {{"computation", times.compute},
                    {"tp", times.tp},
                    {"cp", times.cp},
                    {"bubble", times.bubble},
                    {"optimizer", times.optimizer}};
  if (times.ep > 0.0) json["ep"] = times.ep;
  for (std::size_t i = 0; i < kTrafficNames.size(); ++i) {
    json[fmt::format("{}_exposed", kTrafficNames[i])] = times.exposed[i];
    json[fmt::format("{}_hidden", kTrafficNames[i])] = times.hidden[i];
  }
  return json;
}

template <class Visit>
void for_each_size(const planner::TrafficBySize& traffic, const Visit& visit) {
  traffic.visit([&](const char* group, const planner::MessageSizes& sizes) {
    for (int op = 0; op < kCommOps; ++op) {
      for (int i = 0; i < planner::MessageSizes::kBuckets; ++i) {
        const auto& bucket = sizes.at(static_cast<CommOp>(op), i);
        if (bucket.calls > 0) visit(group, heddle::name_of(static_cast<CommOp>(op)), i, bucket);
      }
    }
  });
}

JsonValue messages_json(const planner::TrafficBySize& traffic) {
  JsonValue json = JsonValue::array();
  for_each_size(traffic, [&](const char* group, std::string_view op, int i, const auto& bucket) {
    json.push_back({{"group", group},
                    {"operation", op},
                    {"at_least_bytes", std::int64_t{1} << i},
                    {"calls", bucket.calls},
                    {"payload_bytes", bucket.bytes}});
  });
  return json;
}

JsonValue sites_json(const planner::SiteTimes& sites) {
  JsonValue json = {
      {"inner_seconds", sites.inner_seconds},    {"waited_seconds", sites.waited_seconds},
      {"work_seconds", sites.work_seconds},      {"utilisation", sites.utilisation},
      {"sent_bytes_per_step", sites.sent_bytes}, {"traffic_between_sites", JsonValue::array()}};
  for (std::size_t op = 0; op < kCommOps; ++op) {
    const auto& [calls, payload, wire] = sites.traffic.by_op[op];
    if (calls == 0) continue;
    json["traffic_between_sites"].push_back(
        {{"operation", heddle::name_of(static_cast<CommOp>(op))},
         {"calls", calls},
         {"payload_bytes", payload},
         {"wire_bytes", wire}});
  }
  return json;
}

void print_json(const SimulateStepOptions& options, const Subject& subject,
                const Simulated& simulated) {
  const planner::SimulatedStep& step = simulated.step;
  const planner::Candidate& plan = subject.plan;
  JsonValue report = {{"model", options.job.model},
                      {"system", subject.machine.name},
                      {"gpus", plan.gpus()},
                      {"plan", planner::describe(plan)},
                      {"microbatches", plan.microbatches(subject.job)},
                      {"step_seconds", simulated.seconds()},
                      {"makespan", step.makespan},
                      {"tokens_per_second", subject.tokens_per_step() / simulated.seconds()},
                      {"mfu", mfu_of(subject, simulated.seconds())},
                      {"bubble_fraction", step.bubble_fraction},
                      {"bubble_over_ideal", step.bubble_over_ideal},
                      {"bubble_cost_rate", step.bubble_cost_rate},
                      {"seconds", times_json(step.mean)},
                      {"transfers", step.transfers},
                      {"ranks", JsonValue::array()},
                      {"messages", JsonValue::array()}};
  if (simulated.sites) report["sites"] = sites_json(*simulated.sites);
  for (const auto& rank : step.ranks) {
    JsonValue json = times_json(rank.times);
    json["device"] = rank.device;
    json["pp_rank"] = rank.pp_rank;
    json["replica"] = rank.replica;
    report["ranks"].push_back(std::move(json));
  }
  for (const auto& traffic : step.messages) report["messages"].push_back(messages_json(traffic));
  fmt::print("{}\n", report.dump(2));
}

// ---- Text ---------------------------------------------------------------------------------------

void print_part(const char* name, double seconds, double all, const std::string& more = {}) {
  if (seconds <= 0.0 && more.empty()) return;
  fmt::print("  {:<16} {:>9.4f} s {:>5.1f} %{}\n", name, seconds, 100 * seconds / all, more);
}

void print_times(const planner::StepTimes& times, double all) {
  print_part("computation", times.compute, all);
  print_part("tp", times.tp, all);
  print_part("cp attention", times.cp, all);
  print_part("ep experts", times.ep, all);
  print_part("bubble", times.bubble, all);
  static constexpr std::array kNames = {"pp messages", "dp exchange", "tied ends", "vocabulary"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const double hidden = times.hidden[i];
    print_part(kNames[i], times.exposed[i], all,
               hidden > 0.0 ? fmt::format(", and {:.4f} s hidden", hidden) : "");
  }
  print_part("optimizer", times.optimizer, all);
}

void print_ranks(const planner::SimulatedStep& step) {
  fmt::print("\n{:>7} {:>5} {:>12} {:>9} {:>9} {:>9} {:>9}\n", "device", "pp", "computation", "tp",
             "bubble", "pp wait", "dp wait");
  for (std::size_t i = 0; i < std::min(kRanksShown, step.ranks.size()); ++i) {
    const auto& [device, pp_rank, replica, times] = step.ranks[i];
    fmt::print("{:>7} {:>5} {:>10.4f} s {:>7.4f} s {:>7.4f} s {:>7.4f} s {:>7.4f} s\n", device,
               pp_rank, times.compute, times.tp, times.bubble, times.exposed_on(Traffic::pp),
               times.exposed_on(Traffic::dp));
  }
  if (step.ranks.size() > kRanksShown) {
    fmt::print("{:>7} {} more, in --json and --trace\n", "", step.ranks.size() - kRanksShown);
  }
}

void print_messages(const planner::SimulatedStep& step) {
  planner::TrafficBySize all;
  for (const auto& traffic : step.messages) all += traffic;
  fmt::print("\nmessages of one device of each pipeline rank, by size\n");
  for_each_size(all, [&](const char* group, std::string_view op, int i, const auto& bucket) {
    fmt::print("  {:<9} {:<15} from {:>10} {:>12} calls {:>12}\n", group, op,
               format_bytes(static_cast<double>(std::int64_t{1} << i)),
               format_thousands(bucket.calls), format_bytes(static_cast<double>(bucket.bytes)));
  });
}

void print_sites(const Simulated& simulated) {
  if (!simulated.sites) return;
  const planner::SiteTimes& sites = *simulated.sites;
  print_part("a site alone", sites.inner_seconds, sites.step_seconds, ", of which");
}

void print_meetings(const Simulated& simulated) {
  if (!simulated.sites) return;
  const planner::SiteTimes& sites = *simulated.sites;
  print_part("outer steps", sites.work_seconds, sites.step_seconds);
  print_part("other sites", sites.waited_seconds, sites.step_seconds, " waited for");
  fmt::print("sites compute      {:.1f} % of the time; a rank sends {} a step to other sites\n",
             100 * sites.utilisation, format_bytes(sites.sent_bytes));
}

void print_text(const SimulateStepOptions& options, const Subject& subject,
                const Simulated& simulated) {
  const planner::SimulatedStep& step = simulated.step;
  const planner::Job& job = subject.job;
  const planner::Candidate& plan = subject.plan;
  fmt::print("{} on {} x {} ({})\n{}\n", options.job.model, plan.gpus(),
             subject.machine.device.name, subject.machine.name, planner::describe(plan));
  fmt::print(
      "{} sequences of {} tokens per step, {} micro-batches; {} ranks stand for {} devices\n\n",
      job.batch * plan.sites, job.seq_len, plan.microbatches(job), step.ranks.size(), plan.gpus());
  fmt::print("step               {:>9.4f} s  {} tokens/s, MFU {:.1f} %\n", simulated.seconds(),
             format_count(subject.tokens_per_step() / simulated.seconds()),
             100 * mfu_of(subject, simulated.seconds()));
  print_sites(simulated);
  print_times(step.mean, simulated.seconds());
  print_meetings(simulated);
  fmt::print("bubble_fraction    {:.4f}, bubble_over_ideal {:.4f}, bubble_cost_rate {:.4f}\n",
             step.bubble_fraction, step.bubble_over_ideal, step.bubble_cost_rate);
  print_ranks(step);
  print_messages(step);
}

void run(const SimulateStepOptions& options) {
  Subject subject = subject_of(options);
  std::optional<network::Topology> topology;
  if (!options.topology.kind.empty()) {
    topology = make_topology(options.topology);
    subject.step.topology = &*topology;
    subject.step.routing = make_routing(options.topology, options.seed);
  }
  subject.step.keeps_spans = !options.trace.empty();
  subject.step.progress = progress_line("simulating the step", "instructions");
  Simulated simulated{
      .step = planner::simulate_step(subject.machine, subject.job,
                                     planner::without_sites(subject.plan), subject.step),
      .sites = std::nullopt};
  if (subject.plan.sites > 1) {
    simulated.sites =
        planner::site_times(subject.machine, subject.job, subject.plan, simulated.step.seconds);
  }
  if (!options.trace.empty()) planner::trace_of(simulated.step).write(options.trace);
  if (options.json) {
    print_json(options, subject, simulated);
  } else {
    print_text(options, subject, simulated);
  }
}

}  // namespace

void add_simulate_step(Verb simulate) {
  const auto options = std::make_shared<SimulateStepOptions>();
  Verb verb = simulate.add_verb("step", "play one optimizer step of a model on a machine");
  add_job_options(verb, options->job);
  verb.add_option("--system", options->system, "machine file, as in configs/systems");
  verb.add_option("--gpus", options->gpus,
                  "number of devices; tp x cp x pp x dp x sites when absent")
      .positive();
  verb.add_option("--plan", options->plan,
                  "sections of a run file, as heddle plan --out writes them; options win over it");
  for (std::size_t i = 0; i < kKeyOptions.size(); ++i) {
    verb.add_option(kKeyOptions[i].option, options->keys[i], kKeyOptions[i].help);
  }
  verb.add_option("--stack", options->stack,
                  "whose steps: megatron is Megatron-LM in f16 before flash attention, which "
                  "published tables were measured with")
      .one_of({"heddle", "megatron"})
      .show_default();
  verb.add_option("--straggler", options->stragglers,
                  "DEVICE=FACTOR: takes so many times as long; may be repeated")
      .one_at_a_time();
  verb.add_flag("--vary", options->varies,
                "computations vary as the machine file says, every device for itself");
  verb.add_option("--seed", options->seed, "of --vary and of hashed paths").show_default();
  add_topology_options(verb, options->topology);
  verb.add_option("--trace", options->trace, "write the timeline into this file, for Perfetto");
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
