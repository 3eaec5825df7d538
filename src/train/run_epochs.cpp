#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/catalog.h"
#include "comm/agree.h"
#include "recover/neighbour_source.h"
#include "train/common_checkpoint.h"
#include "train/lost_state.h"
#include "train/residuals.h"
#include "train/run.h"
#include "train/stage_recovery.h"

namespace heddle {
namespace {

/// Of the rank's own model, and of the copy that it keeps.
template <class BoxesOf>
std::vector<recover::HeldBox> boxes_in(Session& session, const BoxesOf& boxes_of) {
  std::vector<recover::HeldBox> boxes = boxes_of(session.model);
  if (!session.copy) return boxes;
  for (recover::HeldBox& box : boxes_of(session.copy->model())) {
    boxes.push_back(std::move(box));
  }
  return boxes;
}

/// But for what is each rank's own.
std::vector<StateKind> common_states(const Model& model, const SiteNumbers& sites) {
  std::vector<StateKind> kinds = states_of(model, sites);
  const std::vector<std::string> own = unsent_states(model.store());
  std::erase_if(kinds, [&](const StateKind& state) {
    return std::ranges::any_of(
        own, [&](const std::string& name) { return state.kind.starts_with(name); });
  });
  return kinds;
}

}  // namespace

/// A loss ends an epoch, not the run; whoever notices it goes to the next one.
TrainOutcome Run::run_epochs() {
  while (true) {
    epochs_->next();
    try {
      if (auto outcome = epoch()) return *outcome;
    } catch (const AgreedError&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer) throw;
    }
    epochs_->stepping(false);  // the end of a save that is under way may take its time
    end_epoch();
  }
}

std::optional<TrainOutcome> Run::epoch() {
  Stopwatch watch;
  epochs_->meet(own_news());
  take_decided_step();
  if (epochs_->has_sites()) settle_exchanges();
  keep_state();
  epochs_->arrange([this] { return signals_.stop_asked() != 0; });
  const bool is_start = !epochs_->meeting().has_state();
  const bool is_over = !epochs_->is_spare() && !set_up(is_start);
  observe::EpochRow row = describe_epoch(watch.seconds());
  watch.restart();
  if (!is_start) row.source = restore();
  epochs_->all().all().barrier();
  // From here on nobody needs what others had before.
  carried_.boxes.clear();
  carried_.errors.clear();
  carried_.has_state = carried_.session_is_whole = !epochs_->is_spare();
  if (carried_.session_is_whole) carried_.errors.push_back({own_errors(), {}});
  epochs_->begin_behind(state_.step);
  row.step = state_.step;
  row.restore = watch.seconds();
  record(row);
  if (epochs_->is_spare()) return wait_as_spare();
  if (is_over) return end_with_others(already_finished());
  carried_.place = {.mesh = session_->mesh.shape(),
                    .rank = session_->mesh.rank(),
                    .zero = setup_->plan.zero,
                    .copies = kept_copies(setup_->config),
                    .blocks = stage_blocks(setup_->plan, setup_->spec),
                    .left_out = state_.left_out,
                    .sites = setup_->sites.all(setup_->plan.sites)};
  begin_recording(is_start);
  // Members begin alike: what one of them heard before, others may not have.
  is_asked_ = true;
  stopped_by_ = 0;
  loop(is_resumed_ || !is_start);
  if (carried_.is_changing) return std::nullopt;
  if (std::exchange(save_asked_, false)) save_now();  // where no step was left to be made
  return end_with_others(finish());
}

/// Whoever keeps the report later has not seen all epochs.
void Run::record(const observe::EpochRow& row) const {
  if (!setup_ || !setup_->is_first) return;
  try {
    observe::record_epoch(setup_->folder / "epochs.jsonl", row);
  } catch (const Error& error) {
    log_warn("the report will not have epoch {}, training goes on: {}", row.number,
             error.message());
  }
}

observe::EpochRow Run::describe_epoch(double seconds) {
  const recover::Epoch& epoch = epochs_->epoch();
  const recover::Arrangement& made = epochs_->arrangement();
  observe::EpochRow row{.number = epoch.number,
                        .time = utc_time(),
                        .members = epochs_->all().size(),
                        .spares = static_cast<int>(made.spares.size()),
                        .mesh = recover::shape_of(made.request).text(),
                        .cause = carried_.why_cut.empty() ? epoch.cause : carried_.why_cut,
                        .detect = epoch.detect,
                        .agree = epoch.agree,
                        .rebuild = epoch.connect + seconds,
                        .redo = std::exchange(carried_.wasted, 0.0)};
  carried_.why_cut.clear();
  if (setup_ && setup_->is_first && !row.cause.empty()) {
    const std::string waiting =
        row.spares == 0 ? "" : fmt::format(", {} wait{}", row.spares, row.spares == 1 ? "s" : "");
    log_warn(
        "{}; {} rank{} on as epoch {} with {}{} ({:.2f} s to notice, {:.2f} s to agree, {:.2f} s "
        "to rebuild)",
        row.cause, row.members, row.members == 1 ? " goes" : "s go", row.number, row.mesh, waiting,
        row.detect, row.agree, row.rebuild);
  }
  return row;
}

/// What was made of the ranks of the epoch goes, but for the session: a step may be under way there
/// that others have decided.
void Run::end_epoch() {
  carried_.lost_save = saving_ && saving_->is_under_way();
  if (saving_) carried_.checkpoint = std::max(carried_.checkpoint, saving_->newest_step());
  saving_.reset();
  latest_.reset();
  if (recording_) carried_.kept = recording_->take_kept();
  recording_.reset();
  if (!carried_.step_began) return;
  if (step_->is_decided()) {
    count_step(step_->decided_result(), 0.0);
  } else if (carried_.wasted == 0.0) {  // otherwise it was interrupted in an epoch before
    carried_.wasted = carried_.step_began->seconds();
  }
}

MemberNews Run::own_news() const {
  MemberNews news{
      .checkpoint = carried_.checkpoint, .lost_save = carried_.lost_save, .lock = basis_.lock.text};
  if (!carried_.has_state) return news;
  news.state = state_;
  news.totals = carried_.totals;
  news.place = carried_.place;
  news.cut = carried_.cut;
  for (const auto& kept : carried_.errors) news.errors.push_back(kept.of);
  return news;
}

/// Somebody may have decided the step that is under way here.
void Run::take_decided_step() {
  const EpochMeeting& meeting = epochs_->meeting();
  if (meeting.has_state() && carried_.has_state) {
    if (state_.step + 1 == meeting.step() && carried_.step_began) {
      // All ranks of all sites had theirs where one has decided the step; those of others are of
      // their sites.
      step_->decide_by(epochs_->has_sites() ? step_->decided_totals() : meeting.teller().totals);
      count_step(step_->decided_result(), 0.0);
      carried_.wasted = 0.0;
    }
    carried_.has_state = state_.step == meeting.step();
  }
  carried_.step_began.reset();
  for (const MemberNews& news : meeting.members()) {
    if (!news.lock.empty()) basis_.lock.of_this_run.insert(news.lock);
  }
  if (!meeting.has_state()) return;
  const RunState own = state_;
  state_ = *meeting.teller().state;
  if (carried_.has_state) keep_numbers_of_site(own);
  carried_.totals = meeting.teller().totals;
  carried_.cut = meeting.teller().cut;
  carried_.checkpoint = meeting.checkpoint();
}

/// What rests in place of blocks that are left out is no state: nobody is to be given it.
std::vector<recover::HeldBox> Run::held_state() {
  std::vector<recover::HeldBox> boxes = boxes_in(*session_, [this](const Model& model) {
    std::vector<StateKind> kinds = common_states(model, setup_->sites);
    kinds.front().pieces = weights_kept(model, model.store().held_value_pieces());
    return recover::boxes_of(kinds);
  });
  std::erase_if(boxes, [left_out = session_->model.left_out()](const recover::HeldBox& box) {
    return std::ranges::binary_search(left_out, recover::block_of(box.name));
  });
  return boxes;
}

std::vector<recover::HeldBox> Run::wanted_state() {
  return boxes_in(*session_, [this](const Model& model) {
    return recover::boxes_of(common_states(model, setup_->sites));
  });
}

/// The state outlives the session that it was in.
void Run::keep_state() {
  if (!carried_.has_state) {
    carried_.boxes.clear();
    carried_.errors.clear();
    carried_.place.reset();
    carried_.last.reset();
    ledger_.reset();
  } else if (carried_.session_is_whole) {
    carried_.boxes = held_state();
    carried_.errors.back().boxes = unsent_boxes(session_->model.store());
  }
  if (const auto counts = epochs_->meeting().errors()) {
    std::erase_if(carried_.errors,
                  [&](const auto& kept) { return kept.of.epoch != counts->epoch; });
  }
  carried_.session_is_whole = carried_.is_changing = false;
  carried_.refused_cut.clear();
  if (session_) {
    session_->stream.synchronize();  // boxes are read on another stream
    // Calls over etp may be made by the thread of those over ep (PassWalk): it ends before both go.
    session_->mesh.comm(Axis::ep).run_in_background(false);
  }
  step_.reset();
  session_.reset();
  setup_.reset();
  epochs_->leave();
}

/// False where the run is finished already.
bool Run::set_up(bool is_start) {
  setup_.emplace(epochs_->config(), basis_, epochs_->ranks(), epochs_->kept_stages());
  if (is_start) return start();
  setup_->keepers().decide([this] { attach_log_file(setup_->folder / "log.txt"); });
  make_session();
  if (has_adapters()) begin_weights({.is_silent = true});
  if (carried_.checkpoint >= 0) {
    saving_->resumed_from(setup_->checkpoints() / checkpoint_name(carried_.checkpoint),
                          carried_.checkpoint);
  }
  return true;
}

std::string Run::restore() {
  const Recovery& recovery = epochs_->recovery();
  std::string line = recovery.from.line;
  Stream own_stream(1, basis_.options.device);  // of one without a session that may have state
  const bool is_spare = epochs_->is_spare();
  Stream& stream = is_spare ? own_stream : session_->stream;
  std::vector<recover::HeldBox> wanted;
  if (!is_spare) wanted = wanted_state();
  if (epochs_->has_sites()) take_whole_sites(wanted);
  std::vector<recover::LostBlocks> lost = recovery.left_out;
  std::optional<recover::PeerSource> peers;
  const auto ask = [&] {
    peers.emplace(epochs_->all(), carried_.boxes, recover::asked_of_neighbours(wanted, lost),
                  stream);
  };
  ask();
  // Where a recovery was interrupted, somebody may have what was made then.
  if (!peers->missing().empty() && !recovery.lost.empty()) {
    lost.insert(lost.end(), recovery.lost.begin(), recovery.lost.end());
    ask();
  }
  if (!peers->missing().empty()) {
    if (!recovery.from.is_from_checkpoint()) {
      line = fmt::format("{} and {} more are on no rank any more; all go back to a checkpoint",
                         peers->missing().front(), peers->missing().size() - 1);
    }
    if (!is_spare) go_back(line);
    return line;
  }
  note_made(recovery, lost);
  const std::string dealt_out = take_unsent();
  if (!is_spare) take_state(recover::NeighbourSource(*peers, lost));
  if (recovery.has_unsent && !dealt_out.empty()) line += (line.empty() ? "" : "; ") + dealt_out;
  if (!is_spare && setup_->is_first && !line.empty()) {
    recovery.from.line.empty() ? log_info("{}", line) : log_warn("{}", line);
  }
  return line;
}

/// What was made of neighbours, of which `lost` is what nobody had, rests or is trained.
void Run::note_made(const Recovery& recovery, const std::vector<recover::LostBlocks>& lost) {
  state_.left_out.clear();
  for (const recover::LostBlocks& blocks : lost) {
    if (recovery.is_left_out(blocks)) state_.left_out.push_back(blocks);
  }
  for (const auto* all : {&recovery.left_out, &recovery.lost}) {
    for (const recover::LostBlocks& blocks : *all) {
      if (!recovery.is_left_out(blocks)) note_made_anew(blocks);
    }
  }
}

/// Moments of these blocks begin at zero behind the step that counts.
void Run::note_made_anew(const recover::LostBlocks& blocks) {
  for (int block = blocks.begin; block < blocks.end; ++block) {
    state_.made_anew[block] = state_.step - state_.skipped_updates;
  }
}

void Run::take_state(const StateSource& source) {
  const std::vector<int>& whole = epochs_->recovery().whole_sites;
  restore_state(source, session_->model, MissingStates::are_refused, session_->stream,
                {.now = setup_->sites,
                 .then = whole.empty() ? setup_->sites.all(setup_->plan.sites) : whole,
                 .left_behind = unsent_states(session_->model.store())});
  if (session_->copy) {
    restore_state(source, session_->copy->model(), MissingStates::are_refused, session_->stream);
  }
  session_->optimizer->restore(state_.optimizer);
  if (session_->outer) session_->outer->resume(state_.step, session_->stream);
  session_->model.leave_out(recover::numbers_of(state_.left_out));
  // Others may still be at it: what was there before stays until all have theirs.
  for (recover::HeldBox& box : held_state()) carried_.boxes.push_back(std::move(box));
  carried_.errors.push_back({own_errors(), unsent_boxes(session_->model.store())});
  carried_.has_state = true;
}

void Run::go_back(const std::string& why) {
  const std::int64_t step = state_.step;
  latest_ = open_common(setup_->keepers(), setup_->checkpoints(), site());
  if (setup_->is_first) log_warn("{}", why);
  if (!resume()) {
    throw_on_all(setup_->world,
                 Error(ErrorCode::data, fmt::format("{}, but there is none", why),
                       "start the run again, with recover.copies = 1 or a lower checkpoint.every"));
  }
  carried_.boxes = held_state();
  carried_.errors.assign(1, {own_errors(), unsent_boxes(session_->model.store())});
  carried_.has_state = true;
  carried_.last.reset();
  if (ledger_ && ledger_->steps() == step) ledger_->go_back(state_.step);
}

/// A save that was under way is begun again, as is one that was due.
void Run::begin_recording(bool is_start) {
  if (is_start) return recording_->set_kept(std::move(carried_.kept));
  recording_.emplace(*setup_, *session_, state_, std::move(carried_.kept), carried_.last);
  const bool is_saved = saving_->newest_step() == state_.step;
  save_asked_ = !is_saved && state_.step > 0 && (epochs_->meeting().lost_save() || is_save_due());
}

bool Run::is_told_to_leave() const { return epochs_ && signals_.stop_asked() == SIGTERM; }

/// A rank that is told to end leaves the others. Where all are, the run is to stop: launchers and
/// batch systems tell all ranks, one after the other.
bool Run::are_all_told_to_leave() {
  if (!epochs_ || !is_asked_) return false;
  const auto told = [this] {
    return static_cast<int>(setup_->world.all().combine(is_told_to_leave() ? 1 : 0, ReduceOp::sum));
  };
  int count = told();
  if (count == 0) return false;
  constexpr auto kOneAfterTheOther = std::chrono::milliseconds(500);
  if (count < setup_->world.size()) {
    std::this_thread::sleep_for(kOneAfterTheOther);
    count = told();
  }
  if (count == setup_->world.size()) return true;
  leaves_ = is_told_to_leave();
  return false;
}

/// An epoch makes a step at least: a newcomer that cannot stay, because a link of its own fails,
/// must not keep the others from going on. For the same reason all have to hear of one.
bool Run::changes_members() {
  if (!epochs_ || state_.step == epochs_->first_step()) return false;
  bool leaves = false;
  Communicator& ranks = setup_->world.all();
  if (!cuts_again()) {
    if (!is_asked_) return false;
    leaves = ranks.combine(leaves_ ? 1 : 0, ReduceOp::max) != 0;
    const bool comes = ranks.combine(epochs_->wants_change() ? 0 : 1, ReduceOp::max) == 0;
    if (!leaves && !comes) return false;
  }
  // What only the one who leaves has would go with it.
  if (leaves && !others_have_all(setup_->config, setup_->plan.mesh)) save_now();
  tell(saving_->finish());
  if (leaves) {
    // It goes with the epoch, whatever that ends of: not before its state is safe, and before
    // another ends it.
    if (leaves_) epochs_->leave_run();
    ranks.barrier();
  }
  carried_.is_changing = true;
  epochs_->change();
  return true;
}

TrainOutcome Run::end_with_others(TrainOutcome outcome) {
  epochs_->tell_spares({.step = outcome.step,
                        .stopped_by = outcome.stopped_by,
                        .checkpoint = saving_->newest_step(),
                        .loss = outcome.loss});
  epochs_->end();
  return outcome;
}

TrainOutcome Run::wait_as_spare() {
  // A signal that comes to all stops all together: here too it ends nobody at once.
  signals_.set_place({.doing = RunPlace::Doing::stepping,
                      .step = state_.step,
                      .saved = carried_.checkpoint,
                      .saves = config_.checkpoint.on_exit,
                      .may_leave = true});
  log_info("member {} waits: {} compute", epochs_->all().rank(), epochs_->arrangement().ranks());
  epochs_->stepping(true);  // as long as others are: nobody waits for it
  const Epochs::End end = epochs_->wait_as_spare([this] {
    if (!is_told_to_leave()) return;
    epochs_->leave_run();
    epochs_->change();  // those who compute do not know of it
  });
  epochs_->end();
  return {.step = end.step,
          .steps_total = config_.total_steps(),
          .loss = end.loss,
          .stopped_by = end.stopped_by,
          .is_saved = end.checkpoint == end.step,
          .checkpoint = end.checkpoint < 0
                            ? std::filesystem::path()
                            : basis_.folder / "checkpoints" / checkpoint_name(end.checkpoint)};
}

}  // namespace heddle
