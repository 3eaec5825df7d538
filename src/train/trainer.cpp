#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/quantile.h"
#include "base/strings.h"
#include "checkpoint/catalog.h"
#include "checkpoint/retention.h"
#include "comm/agree.h"
#include "data/encode.h"
#include "data/loader.h"
#include "engine/train_step.h"
#include "infer/generate.h"
#include "observe/machine.h"
#include "observe/progress.h"
#include "observe/sinks/console.h"
#include "observe/sinks/jsonl.h"
#include "observe/sinks/tensorboard.h"
#include "observe/starts.h"
#include "observe/trace_parts.h"
#include "ops/softmax_xent.h"
#include "planner/predicted_step.h"
#include "tensor/device_runtime.h"
#include "train/companions.h"
#include "train/data_setup.h"
#include "train/data_use.h"
#include "train/evaluate.h"
#include "train/memory_advice.h"
#include "train/model_setup.h"
#include "train/parallel_setup.h"
#include "train/plan_text.h"
#include "train/rank_agreement.h"
#include "train/resume_check.h"
#include "train/run_folder.h"
#include "train/run_identity.h"
#include "train/run_lock.h"
#include "train/run_plan.h"
#include "train/run_report.h"
#include "train/run_state.h"
#include "train/step_timeline.h"
#include "train/step_trace.h"
#include "train/stop_signals.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

static_assert(kIgnoredTarget == ops::kIgnoreTarget, "data and loss agree on what does not count");

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

/// sum += after - before.
void add_traffic(MeshTraffic& sum, MeshTraffic after, MeshTraffic before) {
  after.with(before, [](const char*, CommCounts& a, const CommCounts& b) {
    for (std::size_t op = 0; op < kCommOps; ++op) {
      a.by_op[op].calls -= b.by_op[op].calls;
      a.by_op[op].payload_bytes -= b.by_op[op].payload_bytes;
    }
  });
  sum.with(after, [](const char*, CommCounts& a, const CommCounts& b) {
    for (std::size_t op = 0; op < kCommOps; ++op) {
      a.by_op[op].calls += b.by_op[op].calls;
      a.by_op[op].payload_bytes += b.by_op[op].payload_bytes;
    }
  });
}

/// One run from start-up to report. The members are in the order in which they are made.
class Run {
 public:
  Run(const config::RunConfig& config, const TrainOptions& options, World& world)
      : config_(config),
        options_(options),
        world_(world),
        is_first_(world.rank() == 0),
        signals_(is_first_, [this](const std::string& why) { world_.abort(why); }),
        folder_(config.folder()),
        stream_(options.dry_run ? Stream::dry(options.device)
                                : Stream(options.threads, options.device)),
        memory_(options.device),
        host_(memory_.for_host()),
        run_tokenizer_(configured_tokenizer(config)),
        tokenizer_(run_tokenizer_.tokenizer),
        spec_(configured_model(config, tokenizer_)),
        identity_(identity_of_start(config, spec_, run_tokenizer_, options.program_version)),
        plan_(make_plan_of_all()),
        lock_(take_folder()),
        data_(open_data()),
        lr_(lr_schedule(config)) {
    add_data_to_identity();
    check_run(config_, spec_, *data_.train);
    stream_.set_deterministic(config_.run.deterministic);
    if (!config_.observe.system.empty()) step_time_.predicted = predicted_seconds();
    if (options_.dry_run) return;
    step_plan_ = plan_rank(config_, spec_, plan_, world.rank(), options_.device);
    if (const auto too_large = refusal(step_plan_.memory)) throw *too_large;
  }

  TrainOutcome run() {
    if (options_.dry_run) return dry_run();
    if (is_first_) print_plan(plan_groups(config_, spec_, plan_, options_.device));
    decide_on_first(world_, [this] { prepare_folder(); });
    start_model();
    if (resumed_ && state_.step >= config_.total_steps()) return already_finished();
    if (is_first_) open_sinks();
    loop();
    return finish();
  }

 private:
  fs::path checkpoints() const { return folder_ / "checkpoints"; }

  observe::Terminal terminal() const {
    return is_first_ ? options_.terminal : observe::Terminal{.is_silent = true};
  }

  /// After ranks have found that they were started alike: nothing that depends on the run file is
  /// decided or exchanged before. (A dry run has one rank only, and others in thought.)
  ParallelPlan make_plan_of_all() {
    if (!options_.dry_run) require_same_on_all_ranks(world_, identity_);
    return make_plan(spec_, parallel_request(config_), world_.size(), config_.data.seq_len);
  }

  /// Before anything is written there. Only the first rank holds it.
  std::unique_ptr<RunLock> take_folder() {
    std::unique_ptr<RunLock> lock;
    if (options_.dry_run) return lock;
    decide_on_first(world_, [&] {
      lock = std::make_unique<RunLock>(folder_);
      check_run_folder(folder_);
    });
    return lock;
  }

  void add_data_to_identity() {
    const RunIdentity data = identity_of(data_);
    if (!options_.dry_run) require_same_on_all_ranks(world_, data);
    identity_.add(data);
  }

  /// The first rank tokenises where that is to be done; the others then find it done.
  RunData open_data() {
    const auto open = [&] {
      return open_run_data(config_, run_tokenizer_,
                           {.threads = options_.threads,
                            .folder = options_.work_folder.empty() ? folder_ : options_.work_folder,
                            .terminal = terminal()});
    };
    std::optional<RunData> data;
    if (is_first_) data = open();
    world_.all().barrier();
    return data ? std::move(*data) : open();
  }

  /// The largest of what the ranks say; all of them ask at the same time.
  int largest_of_ranks(int own) {
    if (world_.size() == 1) return own;
    const Tensor value = host_.alloc({1}, DType::i32, MemoryTag::communication);
    value.host<std::int32_t>()[0] = own;
    world_.all().all_reduce(value, ReduceOp::max, stream_).wait(stream_);
    return value.host<std::int32_t>()[0];
  }

  /// A signal that came to any rank has its effect on all of them at the same place.
  bool stops() {
    if (stopped_by_ != 0) return true;
    constexpr int kSave = 1, kStop = 2;  // and the signal's number
    const bool has_new = signals_.checkpoints_asked() > checkpoints_asked_;
    const int asked = largest_of_ranks(signals_.stop_asked() != 0 ? kStop + signals_.stop_asked()
                                       : has_new                  ? kSave
                                                                  : 0);
    if (asked == kSave) {
      checkpoints_asked_ = signals_.checkpoints_asked();
      save_asked_ = true;
    }
    if (asked > kStop) stopped_by_ = asked - kStop;
    return stopped_by_ != 0;
  }

  /// What the answer to a signal says that the run is doing.
  void now(RunPlace::Doing doing) {
    signals_.set_place({.doing = doing,
                        .step = state_.step,
                        .saved = newest_step_,
                        .saves = config_.checkpoint.on_exit});
  }

  double predicted_seconds() const {
    return planner::predicted_step_seconds(
        planner::read_machine(config_.observe.system), spec_, plan_,
        {.sequences = config_.train.microbatch,
         .seq_len = config_.data.seq_len,
         .microbatches = static_cast<int>(config_.accumulation()),
         .recompute = config_.train.recompute == config::Recompute::block},
        compute_dtype(config_));
  }

  /// What the device has for all; 0 where that is not known.
  std::uint64_t device_bytes() const {
    if (options_.device.kind == Device::Kind::cpu) {
      return observe::inspect_machine().memory_total_bytes;
    }
    return cuda_device_count() > 0 ? device_runtime::device_memory(options_.device).total_bytes : 0;
  }

  /// What a rank may use; 0 where that is not known.
  std::uint64_t memory_limit() const {
    return config_.run.memory_limit > 0 ? static_cast<std::uint64_t>(config_.run.memory_limit)
                                        : device_bytes();
  }

  std::optional<Error> refusal(const MemoryPlan& memory) const {
    const std::uint64_t limit = memory_limit();
    if (limit == 0 || memory.reserved <= limit) return std::nullopt;
    return memory_refusal(config_, spec_, plan_, options_.device, memory, limit);
  }

  /// A dry run looks at all ranks and says what it found before it refuses.
  TrainOutcome dry_run() const {
    RunPlan plan{.model = describe(spec_),
                 .parameters = spec_.parameter_count(),
                 .parallel = plan_,
                 .steps = config_.total_steps(),
                 .tokens_per_step = config_.tokens_per_step(),
                 .microbatches = config_.accumulation(),
                 .sequences = config_.train.microbatch,
                 .seq_len = config_.data.seq_len,
                 .groups = plan_groups(config_, spec_, plan_, options_.device),
                 .step_seconds = step_time_.predicted,
                 .limit_bytes = memory_limit(),
                 .refusal = {}};
    plan.refusal = refusal(plan.fullest().step.memory);
    print_plan(plan.groups);
    return {.steps_total = config_.total_steps(), .plan = std::move(plan)};
  }

  void print_plan(const std::vector<RunPlan::Group>& groups) const {
    const auto row = [](const char* key, const std::string& value) {
      log_info("{:<11} {}", key, value);
    };
    row("model", describe(spec_));
    if (const auto remark = vocabulary_remark(config_, spec_, tokenizer_); !remark.empty()) {
      row("vocabulary", remark);
    }
    if (const auto beyond = beyond_positions(spec_, config_.data.seq_len); !beyond.empty()) {
      log_warn("{}", beyond);
    }
    const DataUse use = describe_use(data_, config_);
    for (const std::string& line : use.lines) row("data", line);
    row("step", fmt::format("{} tokens = {} micro-batches of {} x {}",
                            format_thousands(config_.tokens_per_step()), config_.accumulation(),
                            config_.train.microbatch, config_.data.seq_len));
    row("steps", fmt::format("{} ({} tokens)", format_thousands(config_.total_steps()),
                             format_count(static_cast<double>(config_.total_steps() *
                                                              config_.tokens_per_step()))));
    if (step_time_.predicted) {
      row("step time", fmt::format("{:.3g} s predicted from {}", *step_time_.predicted,
                                   config_.observe.system.string()));
    }
    if (world_.size() == 1) {
      row("memory", describe(groups.front().step.memory));
    } else {
      row("mesh", describe(plan_));
      print_ranks(groups);
    }
    row("run folder", folder_.string());
    for (const std::string& warning : use.warnings) log_warn("{}", warning);
  }

  void print_ranks(const std::vector<RunPlan::Group>& groups) const {
    for (const auto& [first, last, stages, step] : groups) {
      const std::string ranks =
          first == last ? fmt::format("rank {}", first) : fmt::format("ranks {}-{}", first, last);
      log_info("{:<11} {}", ranks, stages);
      log_info("{:<11} {}", "  memory", describe(step.memory));
      for (const std::string& line : describe_traffic(step)) {
        log_info("{:<11} {}", "  sends", line);
      }
    }
  }

  /// On the first rank: the folder is as this run needs it, and it is known where it goes on.
  void prepare_folder() {
    attach_log_file(folder_ / "log.txt");
    if (options_.fresh) {
      forget_earlier_run(folder_);
    } else if (config_.checkpoint.resume) {
      latest_ = open_latest(checkpoints());
    }
    if (latest_) {
      check_resumable(latest_->path(), latest_->manifest(), identity_, config_,
                      options_.accept_changes);
    }
    write_resolved_run_file(folder_, config_);
  }

  void start_model() {
    mesh_ = std::make_unique<Mesh>(plan_.mesh, world_.all());
    model_ = std::make_unique<Model>(spec_, build_options(config_, spec_), plan_, *mesh_,
                                     ParamStore::Purpose::training, memory_);
    optimizer_ = make_optimizer(optimizer_config(config_.optim), model_->store());
    if (resume()) return;
    start_weights(config_, *model_, stream_, terminal());
  }

  MissingStates missing_states() const {
    if (!options_.accept_changes) return MissingStates::are_refused;
    return was_other_optimizer(latest_->manifest(), identity_) ? MissingStates::all_start_at_zero
                                                               : MissingStates::start_at_zero;
  }

  /// From the checkpoint that the first rank found, if it found one.
  bool resume() {
    const std::string name =
        text_of_first(world_, latest_ ? latest_->path().filename().string() : "");
    if (name.empty()) return false;
    if (!latest_) latest_.emplace(checkpoints() / name, Verify::sizes);
    const std::string own = read_text_file(latest_->path() / kCommitFile);
    if (text_of_first(world_, own) != own) {
      throw Error(ErrorCode::usage,
                  fmt::format("{} is not the checkpoint that rank 0 has under this name",
                              latest_->path().string()),
                  "give all ranks the same run folder");
    }
    state_ = restore_run(*latest_, *model_, missing_states(), stream_);
    newest_ = latest_->path();
    newest_step_ = state_.step;
    latest_.reset();
    resumed_ = true;
    if (is_first_) log_info("resuming from {} at step {}", newest_.string(), state_.step);
    return true;
  }

  void open_sinks() {
    observe::record_start(folder_ / "starts.jsonl", {.step = resumed_ ? state_.step : 0,
                                                     .time = utc_time(),
                                                     .host = observe::host_name(),
                                                     .device = device_name(options_.device),
                                                     .version = options_.program_version,
                                                     .command = options_.command,
                                                     .ranks = world_.size(),
                                                     .threads = options_.threads});
    const auto resume = resumed_ ? std::optional(state_.step) : std::nullopt;
    sinks_.add(std::make_unique<observe::ConsoleSink>(observe::ConsoleOptions{
        .terminal = options_.terminal, .line_every = config_.observe.console_every}));
    sinks_.add(std::make_unique<observe::JsonlSink>(folder_ / "metrics.jsonl", resume));
    if (config_.observe.tensorboard) {
      sinks_.add(std::make_unique<observe::TensorBoardSink>(folder_, resume));
    }
  }

  void loop() {
    const BatchPlan plan{
        .samples_per_step = config_.tokens_per_step() / config_.data.seq_len,
        .first_in_step = mesh_->coord(Axis::dp) * config_.accumulation() * config_.train.microbatch,
        .rows_per_batch = config_.train.microbatch,
        .batches_per_step = config_.accumulation()};
    Loader loader(*data_.train, plan, host_, state_.step,
                  static_cast<std::size_t>(config_.data.prefetch));
    TrainStep step(*model_, *optimizer_, stream_, memory_);
    step.observe([this](const Action& action, double begin, double end) {
      recorder_.add(action, begin, end);
      if (trace_) trace_->add(action, begin, end);
    });
    if (config_.observe.trace) start_trace();
    const std::int64_t total = config_.total_steps();
    // A signal during an evaluation gave it up: the step's checkpoint then has no loss.
    if (resumed_ && is_due(config_.train.eval_every) && !state_.eval_loss) evaluate_now();
    checkpoints_asked_ = signals_.checkpoints_asked();  // before the first step nothing is new
    while (state_.step < total && !stops()) {
      if (std::exchange(save_asked_, false)) save_now();
      now(RunPlace::Doing::stepping);
      one_step(step, loader);
      const bool is_last = state_.step == total;
      if (is_due(config_.train.eval_every) || (is_last && data_.eval().eval_windows() > 0)) {
        evaluate_now();
      }
      if (is_due(config_.train.sample_every) && !is_last) sample_now();
      if (is_due(config_.checkpoint.every) || (is_last && config_.checkpoint.on_exit)) save_now();
      if (trace_ && largest_of_ranks(trace_->is_part_full() ? 1 : 0) != 0) write_trace();
    }
  }

  bool is_due(std::int64_t every) const { return every > 0 && state_.step % every == 0; }

  void one_step(TrainStep& step, Loader& loader) {
    const Stopwatch watch;
    std::vector<MicroBatch> batches;
    for (std::int64_t i = 0; i < config_.accumulation(); ++i) {
      batches.push_back(to_microbatch(loader.next()));
    }
    const double lr = lr_.at(state_.step + 1);
    recorder_.begin_step();
    const MeshTraffic before = mesh_->traffic();
    memory_.reset_peak();  // what saving and evaluating take is not the step's
    if (trace_) trace_->begin_step(state_.step + 1);
    const StepResult result = step.run(
        batches, {.lr = lr, .step = state_.step + 1 - state_.skipped_updates}, config_.optim.clip);
    if (trace_) trace_->end_step();
    add_traffic(counted_, mesh_->traffic(), before);
    if (const auto stats = memory_.stats(); stats.peak > largest_step_.peak) largest_step_ = stats;
    add_traffic(expected_, step_plan_.traffic, {});
    ++state_.step;
    now(RunPlace::Doing::recording);
    state_.eval_loss.reset();  // a checkpoint carries the loss of its own step or none
    state_.tokens += config_.tokens_per_step();
    const double seconds = watch.seconds();
    state_.seconds += seconds;
    step_seconds_.push_back(seconds);
    pace_.add(seconds);
    loss_ = result.loss;
    if (!result.is_finite) on_nonfinite(result);
    if (!is_first_) return;
    sinks_.on_step({.step = state_.step,
                    .steps_total = config_.total_steps(),
                    .tokens = state_.tokens,
                    .loss = result.loss,
                    .grad_norm = result.grad_norm,
                    .lr = lr,
                    .step_seconds = seconds,
                    .tokens_per_second = static_cast<double>(config_.tokens_per_step()) / seconds,
                    .mfu = std::nullopt,
                    .data_wait_seconds = loader.take_wait_seconds(),
                    .memory_bytes = options_.device.kind == Device::Kind::cpu
                                        ? observe::process_resident_bytes()
                                        : memory_.stats().reserved,
                    .memory_limit_bytes = 0,
                    .eta_seconds = pace_.eta_seconds(config_.total_steps() - state_.step)});
  }

  void on_nonfinite(const StepResult& result) {
    ++state_.skipped_updates;
    const std::string what =
        fmt::format("loss {} with gradient norm {} is not finite at step {} (first sample {})",
                    result.loss, result.grad_norm, state_.step,
                    (state_.step - 1) * (config_.tokens_per_step() / config_.data.seq_len));
    const bool stops = config_.train.nonfinite == config::OnNonfinite::stop ||
                       state_.skipped_updates > config_.train.nonfinite_limit;
    if (stops) {
      throw Error(ErrorCode::data, what,
                  newest_.empty() ? "lower optim.lr or look at the data"
                                  : "the newest checkpoint is whole; lower optim.lr and run again");
    }
    const std::string reason = fmt::format("{}; update skipped, {} of {} allowed", what,
                                           state_.skipped_updates, config_.train.nonfinite_limit);
    warnings_.push_back(reason);
    sinks_.on_event(observe::UpdateSkipped{.step = state_.step, .reason = reason});
  }

  void evaluate_now() {
    now(RunPlace::Doing::evaluating);
    observe::Progress progress({.label = "evaluating",
                                .total = static_cast<std::uint64_t>(
                                    windows_to_evaluate(data_.eval(), config_.train.eval_tokens)),
                                .unit = "windows",
                                .terminal = terminal()});
    std::int64_t seen = 0;
    const auto on_progress = [&](std::int64_t done, std::int64_t) {
      progress.add(static_cast<std::uint64_t>(done - std::exchange(seen, done)));
      return !stops();
    };
    const auto result = evaluate(*model_, data_.eval(),
                                 {.rows = config_.train.microbatch,
                                  .max_tokens = config_.train.eval_tokens,
                                  .on_progress = on_progress},
                                 stream_, memory_);
    if (stopped_by_ != 0 || result.targets == 0) return;
    state_.eval_loss = result.loss;
    if (!is_first_) return;
    sinks_.on_eval({.step = state_.step,
                    .tokens = state_.tokens,
                    .loss = result.loss,
                    .perplexity = result.perplexity()});
  }

  /// What samples continue: the run file's prompt, or the first words of held-out text.
  std::vector<std::int32_t> sample_prompt() {
    auto prompt = tokenizer_->encode(config_.train.sample_prompt, {.add_special = true});
    const Dataset& text = data_.eval().eval_windows() > 0 ? data_.eval() : *data_.train;
    if (prompt.empty()) {
      const bool is_held_out = text.eval_windows() > 0;
      const Batch batch = is_held_out ? text.eval_batch(0, 1, host_) : text.batch(0, 1, host_);
      constexpr std::size_t kWords = 4;
      const auto ids = batch.ids_BS.host<std::int32_t>();
      prompt.assign(ids.begin(),
                    ids.begin() + static_cast<std::ptrdiff_t>(std::min(kWords, ids.size())));
    }
    prompt.resize(std::min(prompt.size(), static_cast<std::size_t>(config_.data.seq_len)));
    return prompt;
  }

  void sample_now() {
    if (!tokenizer_) return;
    now(RunPlace::Doing::sampling);
    const auto prompt = sample_prompt();
    const auto room = config_.data.seq_len - static_cast<std::int64_t>(prompt.size());
    GenerateOptions options{.max_tokens = std::min(config_.train.sample_tokens, room),
                            .sampling = {.temperature = 0.8,
                                         .top_p = 0.95,
                                         .seed = static_cast<std::uint64_t>(config_.run.seed)}};
    const auto end =
        find_end_token(*tokenizer_, config_.data.eos.empty() ? "auto" : config_.data.eos);
    if (end) options.end_tokens.push_back(*end);
    const auto tokens = generate(*model_, prompt, options, {}, stream_, memory_);
    if (!is_first_) return;
    samples_.push_back({.step = state_.step,
                        .prompt = tokenizer_->decode(prompt, true),
                        .text = tokenizer_->decode(tokens, true)});
    sinks_.on_event(samples_.back());
  }

  void save_now() {
    if (saved_step_ == state_.step) return;
    now(RunPlace::Doing::saving);
    const Stopwatch watch;
    if (is_first_) sinks_.on_event(observe::CheckpointRequested{.step = state_.step});
    const DType dtype =
        config_.checkpoint.dtype == config::FloatType::bf16 ? DType::bf16 : DType::f32;
    newest_ = save_run(checkpoints(), state_, identity_, *model_, dtype,
                       checkpoint_companions(config_, spec_, run_tokenizer_, dtype), world_,
                       memory_, stream_);
    saved_step_ = newest_step_ = state_.step;
    if (!is_first_) return;
    std::uint64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(newest_)) {
      if (entry.is_regular_file()) bytes += entry.file_size();
    }
    sinks_.on_event(observe::CheckpointDurable{
        .step = state_.step, .seconds = watch.seconds(), .bytes = bytes, .path = newest_.string()});
    apply_retention(real_file_system(), checkpoints(),
                    {.keep_last = static_cast<int>(config_.checkpoint.keep),
                     .keep_every = config_.checkpoint.keep_every,
                     .keep_best = config_.checkpoint.best});
  }

  /// Leaves the report alone: it knows what a run that does nothing would not find out.
  TrainOutcome already_finished() const {
    if (is_first_) {
      log_info("this run is finished; a larger train.steps{} continues it, --fresh starts it over",
               longer_run_changes_rate(config_, state_.step)
                   ? " with --accept-changes (it changes the learning rate)"
                   : "");
    }
    return {.step = state_.step,
            .steps_total = config_.total_steps(),
            .loss = std::nan(""),  // none was computed
            .checkpoint = newest_};
  }

  TrainOutcome finish() {
    const bool is_stopped = stops();
    if (is_stopped && config_.checkpoint.on_exit) save_now();
    if (!is_stopped && config_.train.sample_every > 0) sample_now();
    now(RunPlace::Doing::ending);
    collect_memory();
    // A GPU's work is done after the action that began it has ended: its times say nothing.
    if (plan_.mesh.size(Axis::pp) > 1 && options_.device.kind == Device::Kind::cpu) {
      timelines_ =
          step_timelines(recorder_, step_schedule(), mesh_->comm(Axis::pp), memory_, stream_);
    }
    if (trace_) write_trace();
    if (is_first_) close_files();
    return {.step = state_.step,
            .steps_total = config_.total_steps(),
            .loss = loss_,
            .stopped_by = state_.step < config_.total_steps() ? stopped_by_ : 0,
            .is_saved = newest_step_ == state_.step,
            .checkpoint = newest_};
  }

  Schedule step_schedule() const {
    return plan_.step_schedule(static_cast<int>(config_.accumulation()));
  }

  void start_trace() {
    trace_ = std::make_unique<StepTrace>(world_, step_schedule());
    if (!is_first_) return;
    trace_parts_.emplace(folder_ / "trace", state_.step,
                         static_cast<std::uint64_t>(config_.observe.trace_limit));
  }

  void write_trace() {
    const observe::Trace all = trace_->gather();
    if (!is_first_) return;
    try {
      trace_parts_->add(all);
    } catch (const Error& error) {
      if (std::exchange(trace_has_failed_, true)) return;
      log_warn("the trace lacks steps before {}, training goes on: {}", state_.step, error.what());
    }
  }

  /// The peaks of all ranks, for the report.
  void collect_memory() {
    if (world_.size() == 1) return;
    const Tensor own = host_.alloc({2}, DType::f64, MemoryTag::communication);
    own.host<double>()[0] = static_cast<double>(step_plan_.memory.peak);
    own.host<double>()[1] = static_cast<double>(largest_step_.peak);
    const Tensor all = host_.alloc({world_.size(), 2}, DType::f64, MemoryTag::communication);
    world_.all().all_gather(own, all, stream_).wait(stream_);
    const auto peaks = all.host<double>();
    for (int rank = 0; rank < world_.size(); ++rank) {
      const auto at = static_cast<std::size_t>(2 * rank);
      ranks_.push_back({.rank = rank,
                        .predicted_bytes = static_cast<std::uint64_t>(peaks[at]),
                        .measured_bytes = static_cast<std::uint64_t>(peaks[at + 1])});
    }
  }

  /// What was predicted of a step, beside what came of it.
  void compare_step() {
    if (step_seconds_.empty()) return;
    // The first one also takes its memory from the system.
    if (step_seconds_.size() > 1) step_seconds_.erase(step_seconds_.begin());
    step_time_.measured = quantile(step_seconds_, 0.5);
    log_info("a step held {} at its peak, {} predicted",
             format_bytes(static_cast<double>(largest_step_.peak)),
             format_bytes(static_cast<double>(step_plan_.memory.peak)));
    if (!step_time_.predicted) return;
    log_info("a step took {:.3g} s in the median, {:.3g} s predicted ({:+.1f} %)",
             step_time_.measured, *step_time_.predicted,
             100 * (*step_time_.predicted / step_time_.measured - 1));
  }

  void close_files() {
    sinks_.close();
    compare_step();
    if (config_.observe.report) write_report();
  }

  void write_report() const {
    RunSummary summary{.name = config_.run.name,
                       .settings = options_.settings,
                       .step_time = step_time_,
                       .predicted = step_plan_.memory,
                       .measured = largest_step_,
                       .best_possible_loss = std::nullopt,
                       .samples = samples_,
                       .warnings = warnings_,
                       .ranks = ranks_,
                       .timelines = timelines_,
                       .predicted_traffic = expected_,
                       .counted_traffic = counted_};
    if (tokenizer_ && data_.eval().eval_windows() > 0) {
      summary.best_possible_loss = best_demo_loss(data_.eval(), *tokenizer_);
    }
    if (summary.best_possible_loss && state_.eval_loss) {
      log_info("held-out loss {:.4f}; the best possible on this text is {:.4f}", *state_.eval_loss,
               *summary.best_possible_loss);
    }
    write_run_report(folder_, spec_, state_, summary);
    log_info("report: {}", (folder_ / "report.html").string());
  }

  const config::RunConfig& config_;
  const TrainOptions& options_;
  World& world_;
  const bool is_first_;  ///< writes the run folder and speaks to the user
  StopSignals signals_;
  const fs::path folder_;
  Stream stream_;
  Memory memory_;  // of the device
  Memory host_;    // the same on CPU
  const RunTokenizer run_tokenizer_;
  const std::optional<Tokenizer> tokenizer_;  // where it can be used
  const ModelSpec spec_;
  RunIdentity identity_;  // the data's part is added when that is open
  const ParallelPlan plan_;
  const std::unique_ptr<RunLock> lock_;  // of the first rank
  const RunData data_;
  const LrSchedule lr_;
  StepPlan step_plan_;
  observe::StepTimeRow step_time_;
  std::unique_ptr<Mesh> mesh_;  // a dry run has none
  std::unique_ptr<Model> model_;
  std::unique_ptr<Optimizer> optimizer_;
  observe::SinkSet sinks_;
  observe::StepPace pace_;

  std::optional<CheckpointReader> latest_;  // until the run goes on from it
  RunState state_;
  bool resumed_ = false;
  int stopped_by_ = 0;         // a signal's number
  int checkpoints_asked_ = 0;  // by signals, that were seen to
  bool save_asked_ = false;    // by one that was not yet
  double loss_ = 0.0;
  std::vector<double> step_seconds_;  // of this process
  fs::path newest_;
  std::int64_t saved_step_ = -1, newest_step_ = -1;  // by this process, of newest_
  std::vector<observe::SampleText> samples_;
  std::vector<std::string> warnings_;
  MeshTraffic expected_, counted_;  // of the steps
  MemoryStats largest_step_;        // the ledger of the step that held most
  std::vector<observe::RankMemoryRow> ranks_;
  StepRecorder recorder_;
  std::unique_ptr<StepTrace> trace_;  // where the run file asks for it
  std::optional<observe::TraceParts> trace_parts_;
  bool trace_has_failed_ = false;
  std::vector<observe::TimelineFigure> timelines_;
};

}  // namespace

TrainOutcome train(const config::RunConfig& config, const TrainOptions& options, World& world) {
  return Run(config, options, world).run();
}

}  // namespace heddle
