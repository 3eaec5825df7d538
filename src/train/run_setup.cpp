#include "train/run_setup.h"

#include "base/error.h"
#include "base/strings.h"
#include "comm/agree.h"
#include "engine/weights.h"
#include "model/given_cut.h"
#include "observe/machine.h"
#include "ops/softmax_xent.h"
#include "tensor/device_runtime.h"
#include "train/memory_advice.h"
#include "train/model_setup.h"
#include "train/rank_agreement.h"
#include "train/run_report.h"

namespace heddle {
namespace {

static_assert(kIgnoredTarget == ops::kIgnoreTarget, "data and loss agree on what does not count");

/// Of a model in a folder, compared with its weights before anything takes memory for it. There
/// need be none: a dry run comes before them, and a checkpoint has its own.
ModelSpec model_of(const config::RunConfig& config, const RunTokenizer& tokenizer) {
  ModelSpec spec = configured_model(config, tokenizer);
  const std::filesystem::path& folder = config.model.path;
  if (!folder.empty() && HfFolder::has_weights(folder)) check_weights(HfFolder(folder), spec);
  return spec;
}

/// Refuses what the run asks for and this build or model cannot do.
void check_run(const config::RunConfig& config, const ModelSpec& spec, const Dataset& data) {
  compute_dtype(config);
  if (!spec.dropout.empty() && !config.model.ignore_dropout) {
    throw Error(
        ErrorCode::usage,
        "the model's config asks for dropout (" + spec.dropout + "), which heddle does not do",
        "set model.ignore_dropout = true to train without it");
  }
  if (data.vocab_size() > spec.vocab) {
    throw Error(ErrorCode::usage,
                fmt::format("the data has token ids below {}, but the model's vocabulary is {}",
                            data.vocab_size(), spec.vocab),
                fmt::format("set model.vocab_size = {} or use the model's own tokenizer",
                            data.vocab_size()));
  }
}

/// After ranks have found that they were started alike: nothing that depends on the run file is
/// decided or exchanged before. (A dry run has one rank only, and others in thought.)
ParallelPlan plan_of_all(const RunSetup& setup, const KeptStages& kept) {
  if (!setup.options.dry_run) require_same_on_all_ranks(setup.world, setup.identity);
  ParallelPlan plan = configured_plan(setup.config, setup.spec, setup.world.size(),
                                      static_cast<int>(setup.sites_there.size()));
  if (!kept.cut.empty()) plan.units_of_stage = units_of_cut(setup.spec, kept.cut);
  if (setup.config.parallel.ep_exchange.is_to_be_planned()) {
    // Machine files are each rank's own. Those of the first decide.
    plan.ep_exchange = text_of_first(setup.world, plan.ep_exchange.text());
    plan.policy.windows = sum_windows_of(text_of_first(setup.world, text_of(plan.policy.windows)));
  }
  return plan;
}

Keepers keepers_of(const RunSetup& setup, FolderLock& lock) {
  if (setup.options.dry_run) return setup.world;
  const config::CheckpointConfig& checkpoint = setup.config.checkpoint;
  // Where ranks come and go, all of them have one folder.
  const bool is_elastic = setup.config.recover.elastic;
  const MeshShape mesh = is_elastic ? setup.plan.mesh.with(Axis::site, 1) : setup.plan.mesh;
  return take_folder(setup.world, setup.folder, mesh, checkpoint.every > 0 || checkpoint.on_exit,
                     lock);
}

/// The first rank of a folder tokenises where that is to be done; the others then find it done.
const RunData& open_data(const RunSetup& setup, std::optional<RunData>& data) {
  const TrainOptions& options = setup.options;
  const auto open = [&] {
    return open_run_data(
        setup.config, setup.tokenizer,
        {.threads = options.threads,
         .folder = options.work_folder.empty() ? setup.folder : options.work_folder,
         .is_maker = setup.is_first,
         .terminal = setup.terminal()});
  };
  if (setup.is_first && !data) data = open();
  setup.world.all().barrier();
  if (!data) data = open();
  return *data;
}

/// What the machine that the run file names takes for a step.
void predict_times(RunSetup& setup) {
  const config::RunConfig& config = setup.config;
  const planner::Machine machine = planner::read_machine(config.observe.system);
  const planner::RunBatches batches = run_batches(config);
  const DType dtype = compute_dtype(config);
  setup.predicted_sites = planner::predicted_sites(machine, setup.spec, setup.plan, batches, dtype);
  setup.predicted_seconds =
      setup.predicted_sites
          ? setup.predicted_sites->step_seconds
          : planner::predicted_step_seconds(machine, setup.spec, setup.plan, batches, dtype);
  setup.predicted_attention =
      planner::predicted_attention(machine, setup.spec, setup.plan, batches, dtype);
}

/// What the device has for all; 0 where that is not known.
std::uint64_t device_bytes(Device device) {
  if (device.kind == Device::Kind::cpu) return observe::inspect_machine().memory_total_bytes;
  return cuda_device_count() > 0 ? device_runtime::device_memory(device).total_bytes : 0;
}

/// What a rank may use; 0 where that is not known.
std::uint64_t memory_limit(const RunSetup& setup) {
  const auto limit = static_cast<std::uint64_t>(setup.config.run.memory_limit);
  return limit > 0 ? limit : device_bytes(setup.options.device);
}

std::size_t state_bytes(const StepPlan& step) {
  return step.before_step[static_cast<std::size_t>(MemoryTag::parameters)] +
         step.before_step[static_cast<std::size_t>(MemoryTag::optimizer)];
}

/// When members of a run come or go, what a rank had and what it is given are there together.
std::size_t bytes_to_restore(const RunSetup& setup, const StepPlan& step) {
  return setup.config.recover.elastic ? total(step.before_step) + state_bytes(step) : 0;
}

std::optional<Error> refusal(const RunSetup& setup, const StepPlan& step) {
  const std::uint64_t limit = memory_limit(setup);
  if (limit == 0) return std::nullopt;
  if (step.memory.reserved > limit) {
    return memory_refusal(setup.config, setup.spec, setup.plan, setup.options.device, step.memory,
                          limit);
  }
  const std::size_t restoring = bytes_to_restore(setup, step);
  if (restoring <= limit) return std::nullopt;
  return Error(
      ErrorCode::resources,
      fmt::format("the run fits, but would need {} while a lost rank is replaced, when the {} of a "
                  "rank's weights and optimizer states are there twice, and {} may be used",
                  format_bytes(static_cast<double>(restoring)),
                  format_bytes(static_cast<double>(state_bytes(step))),
                  format_bytes(static_cast<double>(limit))),
      "divide state over more ranks (parallel.zero, pp, tp), set recover.copies = 0, or train "
      "without recover.elastic");
}

}  // namespace

RunBasis::RunBasis(const config::RunConfig& run_config, const TrainOptions& train_options)
    : config(run_config),
      options(train_options),
      folder(config.folder()),
      tokenizer(configured_tokenizer(config)),
      spec(model_of(config, tokenizer)),
      identity(identity_of_start(config, spec, tokenizer, options.program_version)) {}

RunSetup::RunSetup(const config::RunConfig& run_config, RunBasis& basis, const RunRanks& ranks,
                   const KeptStages& kept)
    : config(run_config),
      options(basis.options),
      world(ranks.world),
      placed(ranks.placed),
      folder(basis.folder),
      tokenizer(basis.tokenizer),
      spec(basis.spec),
      identity(basis.identity),
      sites_there(ranks.sites.empty() ? options.sites_left : ranks.sites),
      plan(plan_of_all(*this, kept)),
      kept_by(keepers_of(*this, basis.lock)),
      is_first(keepers().is_first()),
      sites{.in_mesh = sites_there, .are_apart = keepers().are_apart()},
      data(open_data(*this, basis.data)) {
  const RunIdentity of_data = identity_of(data);
  if (!options.dry_run) {
    ranks.go_on ? require_same_as_run(world, of_data) : require_same_on_all_ranks(world, of_data);
  }
  identity.add(of_data);
  check_run(config, spec, *data.train);
  if (!config.observe.system.empty()) predict_times(*this);
  if (options.dry_run) return;
  step_plan = plan_rank(config, spec, plan, placed.rank(), options.device, kept.left_out);
  if (const auto too_large = refusal(*this, step_plan)) throw *too_large;
}

observe::Terminal RunSetup::terminal() const {
  return is_first ? options.terminal : observe::Terminal{.is_silent = true};
}

std::int64_t RunSetup::tokens_per_step() const {
  return config.tokens_per_step() / config.parallel.sites * plan.sites;
}

Schedule RunSetup::step_schedule() const {
  return heddle::step_schedule(plan, config.accumulation());
}

bool fits(const RunSetup& setup, const ParallelPlan& plan) {
  const std::uint64_t limit = memory_limit(setup);
  const StepPlan step =
      plan_rank(setup.config, setup.spec, plan, setup.placed.rank(), setup.options.device);
  return limit == 0 || std::max(step.memory.reserved, bytes_to_restore(setup, step)) <= limit;
}

TrainOutcome dry_run(const RunSetup& setup) {
  const config::RunConfig& config = setup.config;
  RunPlan plan{.model = describe(setup.spec),
               .parameters = setup.spec.parameter_count(),
               .parallel = setup.plan,
               .steps = config.total_steps(),
               .tokens_per_step = setup.tokens_per_step(),
               .microbatches = config.accumulation(),
               .sequences = config.train.microbatch,
               .seq_len = config.data.seq_len,
               .context = context_choices(config, setup.spec, setup.plan),
               .groups = plan_groups(config, setup.spec, setup.plan, setup.options.device),
               .step_seconds = setup.predicted_seconds,
               .sites = setup.predicted_sites,
               .limit_bytes = memory_limit(setup),
               .refusal = {}};
  plan.refusal = refusal(setup, fullest(plan.groups).step);
  print_plan(setup, plan.groups);
  return {.steps_total = config.total_steps(), .plan = std::move(plan)};
}

}  // namespace heddle
