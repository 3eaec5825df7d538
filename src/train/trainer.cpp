#include "train/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/reader.h"
#include "comm/agree.h"
#include "data/encode.h"
#include "data/loader.h"
#include "infer/generate.h"
#include "train/common_checkpoint.h"
#include "train/companions.h"
#include "train/evaluate.h"
#include "train/model_setup.h"
#include "train/recording.h"
#include "train/residuals.h"
#include "train/resume_check.h"
#include "train/run_folder.h"
#include "train/saving.h"
#include "train/stop_signals.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// The loop of a run: what is done when. Computing is the session's, keeping checkpoints the
/// saving's, and the recording is told.
class Run {
 public:
  Run(const config::RunConfig& config, const TrainOptions& options, World& world)
      : config_(config),
        world_(world),
        signals_(world.rank() == 0, [this](const std::string& why) { world_.abort(why); }),
        setup_(config, options, world),
        lr_(lr_schedule(config)) {}

  TrainOutcome run() {
    if (setup_.options.dry_run) return dry_run(setup_);
    if (setup_.is_first) {
      print_plan(setup_, plan_groups(config_, setup_.spec, setup_.plan, setup_.options.device));
    }
    prepare_folder();
    session_.emplace(setup_);
    if (session_->outer) {
      world_.flight().set_place(fmt::format("site {}", site()));
      session_->outer->name_sites(setup_.sites.all(session_->mesh.size(Axis::site)));
    }
    saving_.emplace(saving_options(), session_->model, setup_.keepers());
    const bool is_resumed = resume();
    if (!is_resumed) {
      start_weights(config_, session_->model, session_->stream, setup_.terminal());
      if (session_->outer) session_->outer->start(session_->stream);
    } else if (state_.step >= config_.total_steps()) {
      return already_finished();
    }
    recording_.emplace(setup_, *session_, is_resumed ? std::optional(state_.step) : std::nullopt);
    loop(is_resumed);
    return finish();
  }

 private:
  /// The folder is as this run needs it, and its first keeper knows where the run goes on.
  void prepare_folder() {
    const Keepers& keepers = setup_.keepers();
    keepers.decide([this] {
      attach_log_file(setup_.folder / "log.txt");
      if (config_.parallel.sites > 1) log_info("{}", who_keeps());
      if (!setup_.options.loss.empty()) log_warn("{}", how_it_goes_on());
      if (setup_.options.fresh) forget_earlier_run(setup_.folder);
    });
    if (config_.checkpoint.resume && !setup_.options.fresh) {
      latest_ = open_common(keepers, setup_.checkpoints(), site(), !setup_.options.loss.empty());
    }
    keepers.decide([this] {
      if (latest_) {
        check_resumable(latest_->path(), latest_->manifest(), setup_.identity, config_,
                        setup_.options.accept_changes);
        if (!setup_.options.accept_changes) require_known_sites();
      }
      write_resolved_run_file(setup_.folder, config_);
    });
  }

  std::string who_keeps() const {
    if (!setup_.keepers().are_apart()) {
      return fmt::format("sites share the run folder {}", setup_.folder.string());
    }
    return fmt::format("every site keeps a run folder of its own; {} is that of site {}",
                       setup_.folder.string(), site());
  }
  std::string how_it_goes_on() const {
    return fmt::format(
        "{}; going on with site{} {} from the newest checkpoint that all of them have: a step has "
        "{} tokens, those of its own share on each site",
        setup_.options.loss, setup_.plan.sites == 1 ? "" : "s",
        fmt::join(setup_.sites.all(setup_.plan.sites), ", "), setup_.tokens_per_step());
  }

  /// A site that was lost may come back, but not unasked.
  void require_known_sites() const {
    const std::vector<int> then = sites_of(latest_->manifest());
    if (then.empty() || config_.parallel.sites == 1) return;
    for (const int site : setup_.sites.all(setup_.plan.sites)) {
      if (std::ranges::find(then, site) != then.end()) continue;
      throw Error(ErrorCode::usage,
                  fmt::format("site {} was lost before {} was written: going on with it makes "
                              "another run of it",
                              site, latest_->path().string()),
                  "--accept-changes lets it come back, with the weights and states of another "
                  "site; --fresh starts over");
    }
  }

  /// The number of this rank's.
  int site() const { return setup_.sites.at(setup_.plan.mesh.coord(Axis::site, world_.rank())); }

  Saving::Options saving_options() const {
    const config::CheckpointConfig& checkpoint = config_.checkpoint;
    const DType dtype = checkpoint.dtype == config::FloatType::bf16 ? DType::bf16 : DType::f32;
    return {.root = setup_.checkpoints(),
            .identity = setup_.identity,
            .companions = checkpoint_companions(config_, setup_.spec, setup_.tokenizer, dtype),
            .weights = dtype,
            .retention = {.keep_last = static_cast<int>(checkpoint.keep),
                          .keep_every = checkpoint.keep_every,
                          .keep_best = checkpoint.best},
            .sites = setup_.sites};
  }

  /// From the checkpoint that the first keeper found, if it found one.
  bool resume() {
    World& keepers = setup_.keepers().here();
    const std::string name =
        text_of_first(keepers, latest_ ? latest_->path().filename().string() : "");
    if (name.empty()) return false;
    if (!latest_) latest_.emplace(setup_.checkpoints() / name, Verify::sizes);
    const std::string own = read_text_file(latest_->path() / kCommitFile);
    if (text_of_first(keepers, own) != own) {
      throw Error(ErrorCode::usage,
                  fmt::format("{} is not the checkpoint that rank {} has under this name",
                              latest_->path().string(), world_.rank() - keepers.rank()),
                  "give all ranks, or all of a site, the same run folder");
    }
    const RestoredSites sites{
        .now = setup_.sites, .then = sites_of(latest_->manifest()), .left_behind = left_behind()};
    restore_state(*latest_, session_->model, missing_states(), session_->stream, sites);
    const Json then = latest_->manifest().trainer->value("residuals", Json());
    const std::string line =
        restore_residuals(*latest_, then, session_->model, session_->stream,
                          stored_prefix(*latest_, session_->model.store(), sites));
    if (setup_.is_first && !line.empty()) log_info("{}", line);
    state_ = run_state_of(latest_->manifest(), site());
    if (was_other_optimizer(latest_->manifest(), setup_.identity)) {
      refuse_early_freezing();
    } else {
      session_->optimizer->restore(state_.optimizer);
    }
    if (session_->outer) session_->outer->resume(state_.step, session_->stream);
    saving_->resumed_from(latest_->path(), state_.step);
    latest_.reset();
    if (setup_.is_first) {
      log_info("resuming from {} at step {}", saving_->newest().string(), state_.step);
    }
    return true;
  }

  /// What a codec has not sent yet means nothing to another one.
  std::vector<std::string> left_behind() const {
    if (!session_->outer || config_.outer.used_feedback() == 0.0) return {};
    const auto codec = changed_since(latest_->manifest(), setup_.identity, "outer.codec");
    if (!codec) return {};
    if (setup_.is_first) {
      log_info("outer.codec was {} and is {}: its residuals begin with zeros", codec->theirs,
               codec->ours);
    }
    return {OuterSteps::kResidual};
  }

  /// A second moment that starts at zero has to become one before it is frozen.
  void refuse_early_freezing() const {
    const auto& freeze_step = config_.optim.freeze_step;
    const std::int64_t done = state_.step - state_.skipped_updates;
    if (!freeze_step || *freeze_step > done) return;
    throw Error(ErrorCode::usage,
                fmt::format("optim.freeze_step = {} lies behind step {}, at which another "
                            "optimizer's states are left behind and the second moment starts at "
                            "zero",
                            *freeze_step, done),
                fmt::format("give it some hundred steps more than {}", done));
  }

  MissingStates missing_states() const {
    if (!setup_.options.accept_changes) return MissingStates::are_refused;
    return was_other_optimizer(latest_->manifest(), setup_.identity)
               ? MissingStates::all_start_at_zero
               : MissingStates::start_at_zero;
  }

  bool has_new_signal() const {
    return signals_.stop_asked() != 0 || signals_.checkpoints_asked() > checkpoints_asked_;
  }

  /// A signal that came to any rank has its effect on all of them at the same place.
  bool stops() {
    if (stopped_by_ != 0) return true;
    constexpr int kSave = 1, kStop = 2;  // and the signal's number
    const bool has_new = signals_.checkpoints_asked() > checkpoints_asked_;
    const int own = signals_.stop_asked() != 0 ? kStop + signals_.stop_asked()
                    : has_new                  ? kSave
                                               : 0;
    const int asked = session_->outer ? asked_by_sites(own)
                                      : static_cast<int>(world_.all().combine(own, ReduceOp::max));
    if (asked == kSave) {
      checkpoints_asked_ = signals_.checkpoints_asked();
      save_asked_ = true;
    }
    if (asked > kStop) stopped_by_ = asked - kStop;
    return stopped_by_ != 0;
  }

  /// Ranks agree only where a step said that one of them has something to tell: far ranks would
  /// wait for each other between all steps.
  bool stops_between_steps() {
    return stopped_by_ != 0 || ((session_->outer || is_asked_) && stops());
  }

  /// Sites know of each other's wishes only where they meet: what a site asks for goes with its
  /// next exchange, and has its effect on all when that ends.
  int asked_by_sites(int own) {
    const OuterSteps& outer = *session_->outer;
    asked_here_ = static_cast<int>(session_->mesh.largest(own, kStepAxes));
    int asked = 0;
    if (outer.has_met() && heard_step_ != state_.step) {
      for (const SiteNote& note : outer.notes()) asked = std::max(asked, note.asked);
    }
    heard_step_ = state_.step;
    return static_cast<int>(session_->mesh.largest(asked, kStepAxes));
  }
  /// Whether ranks of all sites may be asked something here without making anybody wait.
  bool are_sites_together() const { return !session_->outer || session_->outer->has_met(); }

  /// Layers see outer weights meanwhile, where there are such.
  template <class Work>
  void with_outer_weights(const Work& work) {
    OuterSteps* const outer = session_->outer.get();
    if (outer == nullptr) return work();
    outer->settle(session_->stream);
    outer->swap_weights(session_->stream);
    work();
    outer->swap_weights(session_->stream);
  }

  /// What the answer to a signal says that the run is doing.
  void now(RunPlace::Doing doing) {
    signals_.set_place({.doing = doing,
                        .step = state_.step,
                        .saved = saving_->newest_step(),
                        .saves = config_.checkpoint.on_exit,
                        .has_sites = session_->outer != nullptr});
  }

  void loop(bool is_resumed) {
    const BatchPlan plan{
        .samples_per_step = config_.tokens_per_step() / config_.data.seq_len,
        .first_in_step = replica() * config_.accumulation() * config_.train.microbatch,
        .rows_per_batch = config_.train.microbatch,
        .batches_per_step = config_.accumulation()};
    Loader loader(*setup_.data.train, plan, session_->host, state_.step,
                  static_cast<std::size_t>(config_.data.prefetch));
    TrainStep step(session_->model, *session_->optimizer, session_->stream, session_->memory,
                   session_->outer.get());
    recording_->watch(step);
    step.set_last_load(state_.expert_load);
    step.before_update([this] { saving_->before_update(); });
    step.ask([this] { return has_new_signal(); });
    const std::int64_t total = config_.total_steps();
    // A signal during an evaluation gave it up: the step's checkpoint then has no loss.
    if (is_resumed && is_due(config_.train.eval_every) && !state_.eval_loss) evaluate_now();
    checkpoints_asked_ = signals_.checkpoints_asked();  // before the first step nothing is new
    while (state_.step < total && !stops_between_steps()) {
      if (std::exchange(save_asked_, false)) save_now();
      now(RunPlace::Doing::stepping);
      one_step(step, loader);
      const bool is_last = state_.step == total;
      if (is_due(config_.train.eval_every) || (is_last && setup_.data.eval().eval_windows() > 0)) {
        evaluate_now();
      }
      if (is_due(config_.train.sample_every) && !is_last) sample_now();
      if (are_sites_together()) tell(saving_->poll());
      if (is_due(config_.checkpoint.every) || (is_last && config_.checkpoint.on_exit)) save_now();
      if (are_sites_together()) recording_->write_full_trace();
    }
  }

  /// Of all data-parallel replicas of all sites of the run file: samples of lost ones are not seen.
  std::int64_t replica() const {
    const Mesh& mesh = session_->mesh;
    return std::int64_t{site()} * mesh.size(Axis::dp) + mesh.coord(Axis::dp);
  }

  bool is_due(std::int64_t every) const { return every > 0 && state_.step % every == 0; }

  void one_step(TrainStep& step, Loader& loader) {
    const Stopwatch watch;
    std::vector<MicroBatch> batches;
    for (std::int64_t i = 0; i < config_.accumulation(); ++i) {
      batches.push_back(to_microbatch(loader.next()));
    }
    const double lr = lr_.at(state_.step + 1);
    recording_->begin_step(state_.step + 1);
    if (session_->outer) {
      session_->outer->set_note({.loss = site_loss_.mean(), .asked = asked_here_});
    }
    const StepResult result = step.run(
        batches, {.lr = lr, .step = state_.step + 1 - state_.skipped_updates}, config_.optim.clip);
    const double seconds = watch.seconds();
    ++state_.step;
    now(RunPlace::Doing::recording);
    state_.eval_loss.reset();  // a checkpoint carries the loss of its own step or none
    state_.tokens += setup_.tokens_per_step();
    state_.seconds += seconds;
    loss_ = result.loss;
    const auto& experts = setup_.spec.experts;
    if (experts && experts->gating.balance == Balance::global) {
      state_.expert_load = result.expert_load;
    }
    is_asked_ = result.is_asked;
    if (session_->outer) note_loss(result.loss);
    if (!result.is_finite) on_nonfinite(result);
    recording_->end_step(state_, {.result = result,
                                  .lr = lr,
                                  .seconds = seconds,
                                  .data_wait_seconds = loader.take_wait_seconds()});
  }

  void note_loss(double loss) {
    const OuterSteps& outer = *session_->outer;
    if (outer.has_sent()) site_loss_ = {};
    site_loss_.sum += loss;
    ++site_loss_.steps;
    if (outer.has_met() && !outer.notes().empty())
      recording_->sites_met(state_.step, outer.notes());
  }

  /// Which one it is, among layers with experts; nothing of -1.
  std::string of_router(std::int64_t index) const {
    const ModelSpec& spec = setup_.spec;
    for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
      if (index < 0 || spec.expert_layers_before(layer + 1) <= index) continue;
      return fmt::format(
          "; the first router with logits that are not finite is that of layer {}, {}", layer,
          fmt::format(fmt::runtime(spec.experts->router), layer));
    }
    return "";
  }

  void on_nonfinite(const StepResult& result) {
    ++state_.skipped_updates;
    const std::string what =
        (session_->outer ? fmt::format("site {}: ", site()) : "") +
        fmt::format("loss {} with gradient norm {} is not finite at step {} (first sample {})",
                    result.loss, result.grad_norm, state_.step,
                    (state_.step - 1) * (config_.tokens_per_step() / config_.data.seq_len)) +
        of_router(result.bad_router);
    const bool stops = config_.train.nonfinite == config::OnNonfinite::stop ||
                       state_.skipped_updates > config_.train.nonfinite_limit;
    if (stops) {
      const std::string change = result.bad_router < 0
                                     ? "lower optim.lr"
                                     : "lower optim.lr, or keep logits small with "
                                       "model.router_z_loss = 0.001";
      throw Error(ErrorCode::data, what,
                  saving_->newest().empty()
                      ? change + " or look at the data"
                      : "the newest checkpoint is whole; " + change + " and run again");
    }
    recording_->update_skipped(state_.step,
                               fmt::format("{}; update skipped, {} of {} allowed", what,
                                           state_.skipped_updates, config_.train.nonfinite_limit));
  }

  void evaluate_now() {
    now(RunPlace::Doing::evaluating);
    const Dataset& data = setup_.data.eval();
    observe::Progress progress(
        {.label = "evaluating",
         .total = static_cast<std::uint64_t>(windows_to_evaluate(data, config_.train.eval_tokens)),
         .unit = "windows",
         .terminal = setup_.terminal()});
    std::int64_t seen = 0;
    const auto on_progress = [&](std::int64_t done, std::int64_t) {
      progress.add(static_cast<std::uint64_t>(done - std::exchange(seen, done)));
      return !stops();
    };
    EvalResult result;
    with_outer_weights([&] {
      result = evaluate(session_->model, data,
                        {.rows = config_.train.microbatch,
                         .max_tokens = config_.train.eval_tokens,
                         .on_progress = on_progress},
                        session_->stream, session_->memory);
    });
    if (stopped_by_ != 0 || result.targets == 0) return;
    state_.eval_loss = result.loss;
    recording_->evaluated(state_, result.perplexity());
  }

  /// What samples continue: the run file's prompt, or the first words of held-out text.
  std::vector<std::int32_t> sample_prompt() {
    const Tokenizer& tokenizer = *setup_.tokenizer.tokenizer;
    auto prompt = tokenizer.encode(config_.train.sample_prompt, {.add_special = true});
    const Dataset& held_out = setup_.data.eval();
    const Dataset& text = held_out.eval_windows() > 0 ? held_out : *setup_.data.train;
    if (prompt.empty()) {
      const bool is_held_out = text.eval_windows() > 0;
      Memory& host = session_->host;
      const Batch batch = is_held_out ? text.eval_batch(0, 1, host) : text.batch(0, 1, host);
      constexpr std::size_t kWords = 4;
      const auto ids = batch.ids_BS.host<std::int32_t>();
      prompt.assign(ids.begin(),
                    ids.begin() + static_cast<std::ptrdiff_t>(std::min(kWords, ids.size())));
    }
    prompt.resize(std::min(prompt.size(), static_cast<std::size_t>(config_.data.seq_len)));
    return prompt;
  }

  void sample_now() {
    const std::optional<Tokenizer>& tokenizer = setup_.tokenizer.tokenizer;
    if (!tokenizer) return;
    now(RunPlace::Doing::sampling);
    const auto prompt = sample_prompt();
    const auto room = config_.data.seq_len - static_cast<std::int64_t>(prompt.size());
    GenerateOptions options{.max_tokens = std::min(config_.train.sample_tokens, room),
                            .sampling = {.temperature = 0.8,
                                         .top_p = 0.95,
                                         .seed = static_cast<std::uint64_t>(config_.run.seed)}};
    const auto end =
        find_end_token(*tokenizer, config_.data.eos.empty() ? "auto" : config_.data.eos);
    if (end) options.end_tokens.push_back(*end);
    std::vector<std::int32_t> tokens;
    with_outer_weights([&] {
      tokens = generate(session_->model, prompt, options, {}, session_->stream, session_->memory);
    });
    recording_->sampled({.step = state_.step,
                         .prompt = tokenizer->decode(prompt, true),
                         .text = tokenizer->decode(tokens, true)});
  }

  /// Begins a checkpoint, behind the one that may be under way.
  void save_now() {
    if (saving_->has_begun(state_.step)) return;
    now(RunPlace::Doing::saving);
    tell(saving_->finish());
    recording_->event(observe::CheckpointRequested{.step = state_.step});
    state_.optimizer = session_->optimizer->numbers();
    if (session_->outer) session_->outer->settle(session_->stream);
    saving_->begin(state_);
  }

  void tell(const std::optional<observe::CheckpointDurable>& durable) {
    if (durable) recording_->event(*durable);
  }

  /// Leaves the report alone: it knows what a run that does nothing would not find out.
  TrainOutcome already_finished() const {
    if (setup_.is_first) {
      log_info("this run is finished; a larger train.steps{} continues it, --fresh starts it over",
               longer_run_changes_rate(config_, state_.step)
                   ? " with --accept-changes (it changes the learning rate)"
                   : "");
    }
    return {.step = state_.step,
            .steps_total = config_.total_steps(),
            .loss = std::nan(""),  // none was computed
            .checkpoint = saving_->newest()};
  }

  TrainOutcome finish() {
    const bool is_stopped = stops();
    if (is_stopped && config_.checkpoint.on_exit) save_now();
    if (saving_->is_under_way()) now(RunPlace::Doing::saving);
    tell(saving_->finish());
    if (!is_stopped && config_.train.sample_every > 0) sample_now();
    now(RunPlace::Doing::ending);
    recording_->finish(state_);
    return {.step = state_.step,
            .steps_total = config_.total_steps(),
            .loss = loss_,
            .stopped_by = state_.step < config_.total_steps() ? stopped_by_ : 0,
            .is_saved = saving_->newest_step() == state_.step,
            .checkpoint = saving_->newest()};
  }

  const config::RunConfig& config_;
  World& world_;
  StopSignals signals_;
  const RunSetup setup_;
  const LrSchedule lr_;
  std::optional<CheckpointReader> latest_;  // until the run goes on from it
  std::optional<Session> session_;          // a dry run has none, nor what follows
  std::optional<Recording> recording_;
  std::optional<Saving> saving_;

  RunState state_;
  double loss_ = 0.0;
  /// Of this site's steps since it last sent something.
  struct {
    double sum = 0.0;
    std::int64_t steps = 0;
    double mean() const { return steps > 0 ? sum / static_cast<double>(steps) : 0.0; }
  } site_loss_;
  int asked_here_ = 0;            // by signals that came to this site
  std::int64_t heard_step_ = -1;  // whose notes of other sites were looked at
  int stopped_by_ = 0;            // a signal's number
  int checkpoints_asked_ = 0;     // by signals, that were seen to
  bool save_asked_ = false;       // by one that was not yet
  bool is_asked_ = true;          // by a signal to some rank, before the first step perhaps
};

}  // namespace

TrainOutcome train(const config::RunConfig& config, const TrainOptions& options, World& world) {
  return Run(config, options, world).run();
}

}  // namespace heddle
