#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/catalog.h"
#include "comm/agree.h"
#include "train/common_checkpoint.h"
#include "train/lost_state.h"
#include "train/run.h"
#include "train/stage_recovery.h"

namespace heddle {
namespace {

/// Of the rank's own store, and of that of the copy that it keeps.
template <class BoxesOf>
std::vector<recover::HeldBox> boxes_in(Session& session, const BoxesOf& boxes_of) {
  std::vector<recover::HeldBox> boxes = boxes_of(session.model.store());
  if (!session.copy) return boxes;
  for (recover::HeldBox& box : boxes_of(session.copy->model().store())) {
    boxes.push_back(std::move(box));
  }
  return boxes;
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
    end_epoch();
  }
}

std::optional<TrainOutcome> Run::epoch() {
  Stopwatch watch;
  epochs_->meet(own_news());
  take_decided_step();
  keep_state();
  epochs_->arrange();
  const bool is_start = !epochs_->meeting().has_state();
  const bool is_over = !epochs_->is_spare() && !set_up(is_start);
  observe::EpochRow row = describe_epoch(watch.seconds());
  watch.restart();
  if (!is_start) row.source = restore();
  epochs_->all().all().barrier();
  // From here on nobody needs what others had before.
  carried_.boxes.clear();
  carried_.has_state = carried_.session_is_whole = !epochs_->is_spare();
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
                    .blocks = stage_blocks(setup_->plan, setup_->spec)};
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
  return news;
}

/// Somebody may have decided the step that is under way here.
void Run::take_decided_step() {
  const EpochMeeting& meeting = epochs_->meeting();
  if (meeting.has_state() && carried_.has_state) {
    if (state_.step + 1 == meeting.step() && carried_.step_began) {
      step_->decide_by(meeting.teller().totals);
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
  state_ = *meeting.teller().state;
  carried_.totals = meeting.teller().totals;
  carried_.cut = meeting.teller().cut;
  carried_.checkpoint = meeting.checkpoint();
}

std::vector<recover::HeldBox> Run::held_state() {
  return boxes_in(*session_, [](const ParamStore& store) {
    std::vector<StateKind> kinds = states_of(store);
    kinds.front().pieces = store.held_value_pieces();
    return recover::boxes_of(kinds);
  });
}

std::vector<recover::HeldBox> Run::wanted_state() {
  return boxes_in(*session_,
                  [](const ParamStore& store) { return recover::boxes_of(states_of(store)); });
}

/// The state outlives the session that it was in.
void Run::keep_state() {
  if (!carried_.has_state) {
    carried_.boxes.clear();
    carried_.place.reset();
    carried_.last.reset();
    ledger_.reset();
  } else if (carried_.session_is_whole) {
    carried_.boxes = held_state();
  }
  carried_.session_is_whole = carried_.is_changing = false;
  carried_.refused_cut.clear();
  step_.reset();
  session_.reset();
  setup_.reset();
  epochs_->leave();
}

/// False where the run is finished already.
bool Run::set_up(bool is_start) {
  setup_.emplace(epochs_->config(), basis_, epochs_->ranks());
  if (is_start) return start();
  setup_->keepers().decide([this] { attach_log_file(setup_->folder / "log.txt"); });
  make_session();
  if (carried_.checkpoint >= 0) {
    saving_->resumed_from(setup_->checkpoints() / checkpoint_name(carried_.checkpoint),
                          carried_.checkpoint);
  }
  return true;
}

std::string Run::restore() {
  const EpochMeeting& meeting = epochs_->meeting();
  const LostState lost = lost_state(meeting, checkfree_of(config_));
  recover::Restoration from;
  if (lost.is_anything_lost()) {
    try {
      from = recover::choose_sources(lost.pieces, lost.losses);
    } catch (const Error& error) {
      throw_on_all(epochs_->all(), error);
    }
  }
  const std::vector<recover::LostBlocks> anew =
      recover::lost_blocks(from.sources, meeting.teller().place->blocks);
  Stream host(1);
  const bool is_spare = epochs_->is_spare();
  Stream& stream = is_spare ? host : session_->stream;
  std::vector<recover::HeldBox> wanted;
  if (!is_spare) wanted = wanted_state();
  auto source = std::make_unique<recover::NeighbourSource>(
      epochs_->all(), carried_.boxes, wanted, std::vector<recover::LostBlocks>{}, stream);
  // Where a recovery was interrupted, somebody may have what was made then.
  if (!source->missing().empty() && !anew.empty()) {
    source = std::make_unique<recover::NeighbourSource>(epochs_->all(), carried_.boxes, wanted,
                                                        anew, stream);
  }
  if (!source->missing().empty()) {
    if (from.line.empty() || from.step == meeting.step()) {
      from.line = fmt::format("{} and {} more are on no rank any more; all go back to a checkpoint",
                              source->missing().front(), source->missing().size() - 1);
    }
    if (!is_spare) go_back(from.line);
    return from.line;
  }
  note_made_anew(anew);
  if (!is_spare) take_state(*source);
  if (!is_spare && setup_->is_first && !from.line.empty()) log_warn("{}", from.line);
  return from.line;
}

/// Moments of these blocks begin at zero behind the step that counts.
void Run::note_made_anew(const std::vector<recover::LostBlocks>& blocks) {
  for (const recover::LostBlocks& stage : blocks) {
    for (int block = stage.begin; block < stage.end; ++block) {
      state_.made_anew[block] = state_.step - state_.skipped_updates;
    }
  }
}

void Run::take_state(const StateSource& source) {
  restore_state(source, session_->model, MissingStates::are_refused, session_->stream);
  if (session_->copy) {
    restore_state(source, session_->copy->model(), MissingStates::are_refused, session_->stream);
  }
  session_->optimizer->restore(state_.optimizer);
  // Others may still be at it: what was there before stays until all have theirs.
  for (recover::HeldBox& box : held_state()) carried_.boxes.push_back(std::move(box));
  carried_.has_state = true;
}

void Run::go_back(const std::string& why) {
  const std::int64_t step = state_.step;
  latest_ = open_common(setup_->keepers(), setup_->checkpoints(), site());
  if (setup_->is_first) log_warn("{}", why);
  if (!resume()) {
    throw_on_all(setup_->world,
                 Error(ErrorCode::data, fmt::format("{}, but there is none", why),
                       "start the run again; with a lower checkpoint.every less would be lost"));
  }
  carried_.boxes = held_state();
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
  if (is_told_to_leave()) epochs_->leave_run();
  return false;
}

/// An epoch makes a step at least: a newcomer that cannot stay, because a link of its own fails,
/// must not keep the others from going on. For the same reason all have to hear of one.
bool Run::changes_members() {
  if (!epochs_ || state_.step == epochs_->first_step()) return false;
  if (!cuts_again()) {
    if (!is_asked_) return false;
    Communicator& ranks = setup_->world.all();
    const bool is_leaving = is_told_to_leave() && epochs_->wants_change();
    const bool leaves = ranks.combine(is_leaving ? 1 : 0, ReduceOp::max) != 0;
    const bool comes = ranks.combine(epochs_->wants_change() ? 0 : 1, ReduceOp::max) == 0;
    if (!leaves && !comes) return false;
  }
  tell(saving_->finish());
  carried_.is_changing = true;
  epochs_->change();
  return true;
}

TrainOutcome Run::end_with_others(TrainOutcome outcome) {
  epochs_->tell_spares({.step = outcome.step, .stopped_by = outcome.stopped_by});
  epochs_->end();
  return outcome;
}

TrainOutcome Run::wait_as_spare() {
  log_info("member {} waits: {} compute", epochs_->all().rank(), epochs_->arrangement().ranks());
  epochs_->stepping(true);  // as long as others are: nobody waits for it
  const Epochs::End end = epochs_->wait_as_spare([this] {
    if (is_told_to_leave()) epochs_->leave_run();
  });
  epochs_->end();
  return {.step = end.step,
          .steps_total = config_.total_steps(),
          .loss = std::nan(""),
          .stopped_by = end.stopped_by};
}

}  // namespace heddle
