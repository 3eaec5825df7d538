#include <algorithm>
#include <cmath>
#include <csignal>

#include "base/error.h"
#include "base/log.h"
#include "data/encode.h"
#include "infer/generate.h"
#include "train/evaluate.h"
#include "train/lost_state.h"
#include "train/run.h"
#include "train/stage_recovery.h"

namespace heddle {

bool Run::has_new_signal() const {
  return signals_.stop_asked() != 0 || signals_.checkpoints_asked() > checkpoints_asked_;
}

/// A signal that came to any rank has its effect on all of them at the same place.
bool Run::stops() {
  if (stopped_by_ != 0) return true;
  constexpr int kSave = 1, kStop = 2;  // and the signal's number
  const bool has_new = signals_.checkpoints_asked() > checkpoints_asked_;
  const int stop = is_told_to_leave() ? 0 : signals_.stop_asked();
  const int own = stop != 0 ? kStop + stop : has_new ? kSave : 0;
  const int asked = are_sites_apart()
                        ? asked_by_sites(own)
                        : static_cast<int>(setup_->world.all().combine(own, ReduceOp::max));
  if (asked == kSave) {
    checkpoints_asked_ = signals_.checkpoints_asked();
    save_asked_ = true;
  }
  if (asked > kStop) stopped_by_ = asked - kStop;
  return stopped_by_ != 0;
}

/// Ranks agree only where a step said that one of them has something to tell: far ranks would
/// wait for each other between all steps.
bool Run::stops_between_steps() {
  if (stopped_by_ == 0 && are_all_told_to_leave()) stopped_by_ = SIGTERM;
  return stopped_by_ != 0 || ((are_sites_apart() || is_asked_) && stops());
}

/// Sites know of each other's wishes only where they meet: what a site asks for goes with its
/// next exchange, and has its effect on all when that ends.
int Run::asked_by_sites(int own) {
  const OuterSteps& outer = *session_->outer;
  asked_here_ = static_cast<int>(session_->mesh.largest(own, kStepAxes));
  int asked = 0;
  if (outer.has_met() && heard_step_ != state_.step) {
    for (const SiteNote& note : outer.notes()) asked = std::max(asked, note.asked);
  }
  heard_step_ = state_.step;
  return static_cast<int>(session_->mesh.largest(asked, kStepAxes));
}

/// With a Company they stay in step (docs/design/055-elastic-sites.md).
bool Run::are_sites_apart() const { return session_->outer && !epochs_; }

/// Whether ranks of all sites may be asked something here without making anybody wait.
bool Run::are_sites_together() const { return !are_sites_apart() || session_->outer->has_met(); }

/// Layers see outer weights meanwhile, where there are such.
template <class Work>
void Run::with_outer_weights(const Work& work) {
  OuterSteps* const outer = session_->outer.get();
  if (outer == nullptr) return work();
  outer->settle(session_->stream);
  outer->swap_weights(session_->stream);
  work();
  outer->swap_weights(session_->stream);
}

/// What the answer to a signal says that the run is doing.
void Run::now(RunPlace::Doing doing) {
  signals_.set_place({.doing = doing,
                      .step = state_.step,
                      .saved = saving_->newest_step(),
                      .saves = config_.checkpoint.on_exit,
                      .has_sites = are_sites_apart(),
                      .may_leave = epochs_.has_value()});
}

void Run::loop(bool is_resumed) {
  const recover::Share share = begin_share();
  Loader loader(*setup_->data.train, share.plan, session_->host, state_.step,
                static_cast<std::size_t>(config_.data.prefetch));
  step_.emplace(session_->model, *session_->optimizer, session_->stream, session_->memory,
                session_->outer.get(),
                copy_exchange(session_->mesh, setup_->plan.zero, kept_copies(setup_->config),
                              session_->copy));
  recording_->watch(*step_);
  step_->set_last_load(state_.expert_load);
  step_->set_first_microbatch(share.plan.first_in_step / share.plan.rows_per_batch);
  step_->before_update([this] { saving_->before_update(); });
  const auto asks = [this] { return has_new_signal() || (epochs_ && epochs_->wants_change()); };
  step_->ask(asks);
  if (epochs_) {
    epochs_->ask(asks);
    step_->before_deciding([this](bool meet) { epochs_->decide(state_.step + 1, meet); });
    // What sites exchange may take longer than a few steps.
    if (session_->outer) session_->outer->outlive_ranks([this] { epochs_->stepping(false); });
  }
  unit_rates_ = unit_rates(session_->model, state_);
  if (session_->copy) {
    session_->copy->set_unit_rates(unit_rates(session_->copy->model(), state_));
  }
  const std::int64_t total = config_.total_steps();
  // A signal during an evaluation gave it up: the step's checkpoint then has no loss.
  if (is_resumed && is_evaluation_due() && !state_.eval_loss) evaluate_now();
  checkpoints_asked_ = signals_.checkpoints_asked();  // before the first step nothing is new
  while (state_.step < total && !is_out_of_patience() && !stops_between_steps() &&
         !changes_members()) {
    if (std::exchange(save_asked_, false)) save_now();
    now(RunPlace::Doing::stepping);
    one_step(loader, share);
    if (is_evaluation_due()) evaluate_now();
    if (is_due(config_.train.sample_every) && state_.step < total) sample_now();
    if (are_sites_together()) tell(saving_->poll());
    if (is_save_due()) save_now();
    if (are_sites_together()) recording_->write_full_trace();
  }
}

bool Run::is_evaluation_due() const {
  const bool is_last = state_.step == config_.total_steps();
  return is_due(config_.train.eval_every) || (is_last && setup_->data.eval().eval_windows() > 0);
}

bool Run::is_out_of_patience() const {
  return config_.train.patience > 0 && state_.evaluations_since_best >= config_.train.patience;
}

bool Run::is_save_due() const {
  const bool is_last = state_.step == config_.total_steps() || is_out_of_patience();
  return is_due(config_.checkpoint.every) || (is_last && config_.checkpoint.on_exit);
}

/// What this rank reads of every step, of the samples that the ledger says to be next. Sites that
/// go apart have shares of all replicas of all sites of the run file: samples of lost ones are not
/// seen.
recover::Share Run::begin_share() {
  const std::int64_t samples = config_.tokens_per_step() / config_.data.seq_len;
  const Mesh& mesh = session_->mesh;
  if (are_sites_apart()) {
    const std::int64_t replica = std::int64_t{site()} * mesh.size(Axis::dp) + mesh.coord(Axis::dp);
    return {.plan = {.samples_per_step = samples,
                     .first_in_step = replica * config_.accumulation() * config_.train.microbatch,
                     .rows_per_batch = config_.train.microbatch,
                     .batches_per_step = config_.accumulation()}};
  }
  if (!ledger_) ledger_.emplace(samples, config_.train.microbatch);
  ledger_->begin_epoch(epochs_ ? epochs_->epoch().number : 0, state_.step, mesh.shape());
  return ledger_->share(mesh.rank());
}

/// Replicas whose share is smaller than that of others add micro-batches in which nothing counts.
std::vector<MicroBatch> Run::next_batches(Loader& loader, std::int64_t count,
                                          std::int64_t blanks) const {
  std::vector<MicroBatch> batches;
  for (std::int64_t i = 0; i < count; ++i) batches.push_back(to_microbatch(loader.next()));
  for (std::int64_t i = 0; i < blanks; ++i) {
    MicroBatch blank = batches.front();
    Memory host;
    blank.targets = host.alloc(blank.targets.shape(), DType::i32, MemoryTag::data);
    std::ranges::fill(blank.targets.host<std::int32_t>(), kIgnoredTarget);
    batches.push_back(std::move(blank));
  }
  return batches;
}

void Run::one_step(Loader& loader, const recover::Share& share) {
  carried_.step_began.emplace();
  if (epochs_) epochs_->stepping(true);
  const std::vector<MicroBatch> batches =
      next_batches(loader, share.plan.batches_per_step, share.blanks);
  recording_->begin_step(state_.step + 1);
  if (session_->outer) {
    session_->outer->set_note({.loss = site_loss_.mean(), .asked = asked_here_});
  }
  const StepResult result = step_->run(batches,
                                       {.lr = lr_.at(state_.step + 1),
                                        .step = state_.step + 1 - state_.skipped_updates,
                                        .units = unit_rates_},
                                       config_.optim.clip);
  if (epochs_) epochs_->stepping(false);
  count_step(result, loader.take_wait_seconds());
  is_asked_ = epochs_ && epochs_->has_sites() ? epochs_->is_asked() : result.is_asked;
  if (session_->outer) note_loss(result.loss);
  recording_->end_step(state_, *carried_.last);
}

/// A step is done: weights are those behind it.
void Run::count_step(const StepResult& result, double data_wait_seconds) {
  const double seconds = carried_.step_began->seconds();
  carried_.step_began.reset();
  ++state_.step;
  carried_.totals = step_->decided_totals();
  state_.optimizer = session_->optimizer->numbers();
  if (carried_.place) weigh_neighbours(state_.left_out, *carried_.place, carried_.totals);
  carried_.last = {.result = result,
                   .lr = lr_.at(state_.step),
                   .seconds = seconds,
                   .data_wait_seconds = data_wait_seconds};
  if (saving_) now(RunPlace::Doing::recording);
  state_.eval_loss.reset();  // a checkpoint carries the loss of its own step or none
  state_.tokens += setup_->tokens_per_step();
  state_.seconds += seconds;
  loss_ = result.loss;
  const auto& experts = setup_->spec.experts;
  if (experts && experts->gating.balance == Balance::global) {
    state_.expert_load = result.expert_load;
  }
  if (ledger_) ledger_->finished(state_.step);
  if (!result.is_finite) on_nonfinite(result);
}

void Run::note_loss(double loss) {
  const OuterSteps& outer = *session_->outer;
  if (outer.has_sent()) site_loss_ = {};
  site_loss_.sum += loss;
  ++site_loss_.steps;
  if (outer.has_met() && !outer.notes().empty()) recording_->sites_met(state_.step, outer.notes());
}

/// Which one it is, among layers with experts; nothing of -1.
std::string Run::of_router(std::int64_t index) const {
  const ModelSpec& spec = setup_->spec;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    if (index < 0 || spec.expert_layers_before(layer + 1) <= index) continue;
    return fmt::format("; the first router with logits that are not finite is that of layer {}, {}",
                       layer, fmt::format(fmt::runtime(spec.experts->router), layer));
  }
  return "";
}

void Run::on_nonfinite(const StepResult& result) {
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
    const std::string change = result.bad_router < 0 ? "lower optim.lr"
                                                     : "lower optim.lr, or keep logits small with "
                                                       "model.router_z_loss = 0.001";
    throw Error(ErrorCode::data, what,
                !saving_ || saving_->newest().empty()
                    ? change + " or look at the data"
                    : "the newest checkpoint is whole; " + change + " and run again");
  }
  if (!recording_) return;
  recording_->update_skipped(
      state_.step, fmt::format("{}; update skipped, {} of {} allowed", what, state_.skipped_updates,
                               config_.train.nonfinite_limit));
}

/// All ranks have the same loss.
void Run::count_evaluation(double loss) {
  if (!state_.best_eval_loss || loss < *state_.best_eval_loss) {
    state_.best_eval_loss = loss;
    state_.evaluations_since_best = 0;
    return;
  }
  ++state_.evaluations_since_best;
  if (!is_out_of_patience() || !setup_->is_first) return;
  log_info("step {}: held-out loss {:.4f}; the best of {:.4f} was {} evaluations ago: stopping",
           state_.step, loss, *state_.best_eval_loss, state_.evaluations_since_best);
}

void Run::evaluate_now() {
  now(RunPlace::Doing::evaluating);
  const Dataset& data = setup_->data.eval();
  observe::Progress progress(
      {.label = "evaluating",
       .total = static_cast<std::uint64_t>(windows_to_evaluate(data, config_.train.eval_tokens)),
       .unit = "windows",
       .terminal = setup_->terminal()});
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
  if (stopped_by_ != 0) return;
  if (result.targets == 0) {
    if (setup_->is_first) {
      log_warn("step {}: none of the held-out tokens is to be learnt, so there is no held-out loss",
               state_.step);
    }
    return;
  }
  state_.eval_loss = result.loss;
  count_evaluation(result.loss);
  recording_->evaluated(state_, result);
}

/// What samples continue: the run file's prompt, or the first words of held-out text.
std::vector<std::int32_t> Run::sample_prompt() {
  const Tokenizer& tokenizer = *setup_->tokenizer.tokenizer;
  auto prompt = tokenizer.encode(config_.train.sample_prompt, {.add_special = true});
  const Dataset& held_out = setup_->data.eval();
  const Dataset& text = held_out.eval_windows() > 0 ? held_out : *setup_->data.train;
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

void Run::sample_now() {
  const std::optional<Tokenizer>& tokenizer = setup_->tokenizer.tokenizer;
  if (!tokenizer) return;
  now(RunPlace::Doing::sampling);
  const auto prompt = sample_prompt();
  const auto room = config_.data.seq_len - static_cast<std::int64_t>(prompt.size());
  GenerateOptions options{
      .max_tokens = std::min(config_.train.sample_tokens, room),
      .sampling = {
          .temperature = 0.8, .top_p = 0.95, .seed = static_cast<std::uint64_t>(config_.run.seed)}};
  if (const auto end = run_special_tokens(config_, *tokenizer).eos) {
    options.end_tokens.push_back(*end);
  }
  std::vector<std::int32_t> tokens;
  with_outer_weights([&] {
    tokens = generate(session_->model, prompt, options, {}, session_->stream, session_->memory);
  });
  recording_->sampled({.step = state_.step,
                       .prompt = tokenizer->decode(prompt, true),
                       .text = tokenizer->decode(tokens, true)});
}

/// Begins a checkpoint, behind the one that may be under way.
void Run::save_now() {
  if (saving_->has_begun(state_.step)) return;
  now(RunPlace::Doing::saving);
  tell(saving_->finish());
  recording_->event(observe::CheckpointRequested{.step = state_.step});
  if (session_->outer) session_->outer->settle(session_->stream);
  saving_->begin(state_);
}

void Run::tell(const std::optional<observe::CheckpointDurable>& durable) {
  if (durable) recording_->event(*durable);
}

}  // namespace heddle
