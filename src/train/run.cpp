#include "train/run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "comm/agree.h"
#include "recover/neighbour_source.h"
#include "train/common_checkpoint.h"
#include "train/companions.h"
#include "train/residuals.h"
#include "train/resume_check.h"
#include "train/run_folder.h"
#include "train/stage_recovery.h"
#include "train/trainer_check.h"

namespace heddle {

Run::Run(const config::RunConfig& config, const TrainOptions& options, World& world)
    : config_(config),
      world_(&world),
      signals_(world.rank() == 0, [this](const std::string& why) { world_->abort(why); }),
      basis_(config, options),
      lr_(lr_schedule(config)) {}

Run::Run(const config::RunConfig& config, const TrainOptions& options, recover::Company& company)
    : config_(config),
      world_(nullptr),
      signals_(false),
      basis_(config, options),
      lr_(lr_schedule(config)),
      epochs_(std::in_place, company, basis_) {}

TrainOutcome Run::run() {
  if (epochs_) return run_epochs();
  setup_.emplace(config_, basis_, RunRanks{*world_, *world_});
  if (setup_->options.dry_run) {
    if (config_.recover.elastic) require_outliving(config_, setup_->spec);
    return dry_run(*setup_);
  }
  if (!start()) return already_finished();
  loop(is_resumed_);
  return finish();
}

bool Run::start() {
  if (setup_->is_first) {
    print_plan(*setup_,
               plan_groups(setup_->config, setup_->spec, setup_->plan, setup_->options.device));
  }
  prepare_folder();
  make_session();
  // Checkpoints have the adapters alone.
  if (has_adapters()) begin_weights(setup_->terminal());
  is_resumed_ = resume();
  if (is_resumed_ && (state_.step >= config_.total_steps() || is_out_of_patience())) return false;
  if (!is_resumed_ && !has_adapters()) begin_weights(setup_->terminal());
  recording_.emplace(*setup_, *session_, is_resumed_ ? std::optional(state_.step) : std::nullopt);
  return true;
}

bool Run::has_adapters() const { return setup_->spec.tuning.lora.has_value(); }

void Run::begin_weights(const observe::Terminal& terminal) {
  start_weights(config_, session_->model, session_->stream, terminal);
  if (session_->copy) {
    start_weights(config_, session_->copy->model(), session_->stream, {.is_silent = true});
  }
  if (session_->outer) session_->outer->start(session_->stream);
}

void Run::make_session() {
  session_.emplace(*setup_);
  if (session_->outer) {
    setup_->world.flight().set_place(fmt::format("site {}", site()));
    session_->outer->name_sites(setup_->sites.all(session_->mesh.size(Axis::site)));
  }
  saving_.emplace(saving_options(), session_->model, setup_->keepers());
}

/// The folder is as this run needs it, and its first keeper knows where the run goes on.
void Run::prepare_folder() {
  const Keepers& keepers = setup_->keepers();
  keepers.decide([this] {
    attach_log_file(setup_->folder / "log.txt");
    if (config_.parallel.sites > 1) log_info("{}", who_keeps());
    if (!setup_->options.loss.empty()) log_warn("{}", how_it_goes_on());
    if (setup_->options.fresh) forget_earlier_run(setup_->folder);
  });
  if (config_.checkpoint.resume && !setup_->options.fresh) {
    latest_ = open_common(keepers, setup_->checkpoints(), site(), !setup_->options.loss.empty());
  }
  keepers.decide([this] {
    if (latest_) {
      check_resumable(latest_->path(), latest_->manifest(), setup_->identity, config_,
                      setup_->options.accept_changes);
      check_trainer(latest_->manifest(), setup_->spec, latest_->path());
      if (!setup_->options.accept_changes && !epochs_) require_known_sites();
    }
    write_resolved_run_file(setup_->folder, config_);
  });
}

std::string Run::who_keeps() const {
  if (!setup_->keepers().are_apart()) {
    return fmt::format("sites share the run folder {}", setup_->folder.string());
  }
  return fmt::format("every site keeps a run folder of its own; {} is that of site {}",
                     setup_->folder.string(), site());
}

std::string Run::how_it_goes_on() const {
  return fmt::format(
      "{}; going on with site{} {} from the newest checkpoint that all of them have: a step has "
      "{} tokens, those of its own share on each site",
      setup_->options.loss, setup_->plan.sites == 1 ? "" : "s",
      fmt::join(setup_->sites.all(setup_->plan.sites), ", "), setup_->tokens_per_step());
}

/// A site that was lost may come back, but not unasked.
void Run::require_known_sites() const {
  const std::vector<int> then = sites_of(latest_->manifest());
  if (then.empty() || config_.parallel.sites == 1) return;
  for (const int site : setup_->sites.all(setup_->plan.sites)) {
    if (std::ranges::find(then, site) != then.end()) continue;
    throw Error(ErrorCode::usage,
                fmt::format("site {} was lost before {} was written: going on with it makes "
                            "another run of it",
                            site, latest_->path().string()),
                "--accept-changes lets it come back, with the weights and states of another "
                "site; --fresh starts over");
  }
}

int Run::site() const {
  return setup_->sites.at(setup_->plan.mesh.coord(Axis::site, setup_->placed.rank()));
}

Saving::Options Run::saving_options() const {
  const config::CheckpointConfig& checkpoint = config_.checkpoint;
  const DType dtype = checkpoint.dtype == config::FloatType::bf16 ? DType::bf16 : DType::f32;
  return {.root = setup_->checkpoints(),
          .identity = setup_->identity,
          .companions = checkpoint_companions(config_, setup_->spec, setup_->tokenizer, dtype),
          .weights = dtype,
          .retention = {.keep_last = static_cast<int>(checkpoint.keep),
                        .keep_every = checkpoint.keep_every,
                        .keep_best = checkpoint.best},
          .sites = setup_->sites};
}

/// From the checkpoint that the first keeper found, if it found one.
bool Run::resume() {
  World& keepers = setup_->keepers().here();
  const std::string name =
      text_of_first(keepers, latest_ ? latest_->path().filename().string() : "");
  if (name.empty()) return false;
  if (!latest_) latest_.emplace(setup_->checkpoints() / name, Verify::sizes);
  const std::string own = read_text_file(latest_->path() / kCommitFile);
  if (text_of_first(keepers, own) != own) {
    throw Error(ErrorCode::usage,
                fmt::format("{} is not the checkpoint that rank {} has under this name",
                            latest_->path().string(), setup_->world.rank() - keepers.rank()),
                "give all ranks, or all of a site, the same run folder");
  }
  state_ = run_state_of(latest_->manifest(), site());
  const recover::NeighbourSource source(*latest_, take_left_out());
  const RestoredSites sites{
      .now = setup_->sites, .then = sites_of(latest_->manifest()), .left_behind = left_behind()};
  restore_state(source, session_->model, missing_states(), session_->stream, sites);
  if (session_->copy) {
    restore_state(source, session_->copy->model(), missing_states(), session_->stream);
  }
  const Json then = latest_->manifest().trainer->value("residuals", Json());
  const std::string line =
      restore_residuals(*latest_, then, session_->model, session_->stream,
                        stored_prefix(*latest_, session_->model.store(), sites));
  if (setup_->is_first && !line.empty()) log_info("{}", line);
  if (was_other_optimizer(latest_->manifest(), setup_->identity)) {
    refuse_early_freezing();
  } else {
    session_->optimizer->restore(state_.optimizer);
  }
  if (session_->outer) session_->outer->resume(state_.step, session_->stream);
  saving_->resumed_from(latest_->path(), state_.step);
  latest_.reset();
  if (setup_->is_first) {
    log_info("resuming from {} at step {}", saving_->newest().string(), state_.step);
  }
  return true;
}

/// Of blocks that were left out when the checkpoint was written, those that are to be made of their
/// neighbours: all, where a run that may lose ranks has one for every stage. Otherwise they stay
/// so.
std::vector<recover::LostBlocks> Run::take_left_out() {
  const std::vector<recover::LostBlocks> left_out = state_.left_out;
  if (left_out.empty()) return {};
  const bool stay = !epochs_ || (skips_stages(config_) && !epochs_->has_all_stages());
  if (!stay) {
    for (const recover::LostBlocks& blocks : left_out) note_made_anew(blocks);
    state_.left_out.clear();
  }
  session_->model.leave_out(recover::numbers_of(state_.left_out));
  if (setup_->is_first) {
    std::vector<std::string> blocks;
    for (const auto& [begin, end, before, after, a, b] : left_out) {
      blocks.push_back(recover::blocks_text(begin, end));
    }
    log_warn("{} had left out {}: {}", latest_->path().filename().string(),
             fmt::join(blocks, " and "),
             stay ? "so does this run, until it is elastic and has a rank for every stage"
                  : "now made of the blocks beside them and trained (CheckFree)");
  }
  return stay ? std::vector<recover::LostBlocks>() : left_out;
}

/// What a codec has not sent yet means nothing to another one.
std::vector<std::string> Run::left_behind() const {
  if (!session_->outer || config_.outer.used_feedback() == 0.0) return {};
  const auto codec = changed_since(latest_->manifest(), setup_->identity, "outer.codec");
  if (!codec) return {};
  if (setup_->is_first) {
    log_info("outer.codec was {} and is {}: its residuals begin with zeros", codec->theirs,
             codec->ours);
  }
  return {OuterSteps::kResidual};
}

/// A second moment that starts at zero has to become one before it is frozen.
void Run::refuse_early_freezing() const {
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

MissingStates Run::missing_states() const {
  if (!setup_->options.accept_changes) return MissingStates::are_refused;
  return was_other_optimizer(latest_->manifest(), setup_->identity)
             ? MissingStates::all_start_at_zero
             : MissingStates::start_at_zero;
}

/// Leaves the report alone: it knows what a run that does nothing would not find out.
TrainOutcome Run::already_finished() const {
  if (setup_->is_first) {
    log_info("this run is finished; a larger train.{}{} continues it, --fresh starts it over",
             is_out_of_patience() ? "patience" : "steps",
             !is_out_of_patience() && longer_run_changes_rate(config_, state_.step)
                 ? " with --accept-changes (it changes the learning rate)"
                 : "");
  }
  return {.step = state_.step,
          .steps_total = config_.total_steps(),
          .loss = std::nan(""),  // none was computed
          .checkpoint = saving_->newest()};
}

TrainOutcome Run::finish() {
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

}  // namespace heddle
