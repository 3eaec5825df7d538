#include "recover/membership/member_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/log.h"
#include "comm/stopped_by_peer.h"
#include "recover/company.h"
#include "recover/membership/note_wire.h"

namespace heddle::recover {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// Before the median of steps says something about the next one.
constexpr std::size_t kLeastSteps = 3;
constexpr std::size_t kMostSteps = 32;
/// A hang of which nobody knows whose it is ends an epoch so often without a step in between.
constexpr int kMostRebuilds = 3;
constexpr Duration kLeastTimeToCome = 10s;
constexpr std::size_t kMostCallersKept = 4 * kMostMembers;

}  // namespace

MemberService::MemberService(Socket listening, Setup setup)
    : setup_(std::move(setup)),
      run_(setup_.run),
      limits_(derive_limits(setup_.timeout, {}, {})),
      started_at_(now()) {
  const bool is_newcomer = setup_.first.members.empty();
  if (!is_newcomer) {
    membership_.emplace(run_, setup_.self.id, setup_.first, limits_, started_at_);
    reports_ = Reports(setup_.first.members.size(), started_at_);
  }
  const int place = is_newcomer ? -1 : static_cast<int>(*setup_.first.place_of(setup_.self.id));
  const Hello own = own_hello(place, static_cast<int>(setup_.first.members.size()), 0);
  links_.emplace(std::move(listening), own, setup_.token,
                 MemberLinks::Events{
                     .on_note = [this](const Note& note) { on_note(note); },
                     .on_status = [this](const Status& status) { on_status(status); },
                     .on_closed = [this](MemberId member) { on_closed(member); },
                     .on_caller = [this](Callers::Guest guest) { on_caller(std::move(guest)); },
                     .on_tick = [this] { on_tick(); }});
  links_->start();
}

MemberService::~MemberService() {
  Time until{};
  {
    const std::lock_guard lock(mutex_);
    knows_end_ = true;
    if (!ended_.empty() && membership_) until = ended_at_ + 2 * limits_.round;
  }
  if (const Time left = until - now(); left.count() > 0) std::this_thread::sleep_for(left);
  links_->stop();
}

MemberService::Time MemberService::now() const { return Clock::now().time_since_epoch(); }

template <class Act>
void MemberService::act(const Act& what) {
  Consequences then;
  {
    const std::lock_guard lock(mutex_);
    const Time at = now();
    what(then, at);
    collect(then, at);
  }
  carry_out(then);
}

void MemberService::collect(Consequences& then, Time now) {
  if (!membership_) return;
  for (const Membership::Event& event : membership_->take_events()) handle(event, then, now);
  for (Membership::Letter& letter : membership_->take_letters()) {
    then.letters.push_back(std::move(letter));
  }
}

void MemberService::carry_out(Consequences& then) {
  for (const Membership::Letter& letter : then.letters) {
    links_->send(letter.to,
                 std::make_shared<const std::vector<std::byte>>(seal(letter.note, setup_.token)));
  }
  if (!then.told.empty()) {
    if (then.flight) then.status.report = to_text(then.flight->report());
    const auto message =
        std::make_shared<const std::vector<std::byte>>(seal(then.status, setup_.token));
    for (const Member& member : then.told) links_->send(member, message);
  }
  if (then.failing) then.failing->fail(then.why);
  if (then.keep) links_->keep_only(*then.keep);
  if (!then.line.empty()) log_info("{}", then.line);
}

void MemberService::prepare_status(Consequences& then) {
  const Roster& roster = membership_->roster();
  then.told.clear();
  for (const Member& member : roster.members) {
    if (member.id != setup_.self.id) then.told.push_back(member);
  }
  const auto cause = causes_.find(roster.epoch);
  const bool knows = cause != causes_.end() && cause->second.source == Source::own;
  then.status = {.run = run_,
                 .from = setup_.self.id,
                 .sequence = ++status_sequence_,
                 .epoch = roster.epoch,
                 .is_stepping = is_stepping_,
                 .end = end_,
                 .cause = knows ? cause->second.text : ""};
  then.flight = flight_;
}

void MemberService::handle(const Membership::Event& event, Consequences& then, Time now) {
  changed_.notify_all();
  const Roster& roster = membership_->roster();
  if (event.state == Membership::State::agreeing) return end_epoch(event.text, then, now);
  then.failing = std::exchange(failure_, nullptr);
  flight_.reset();  // of a world whose ranks have other numbers now
  if (event.state == Membership::State::ended) {
    ended_ = event.text;
    ended_at_ = now;
    then.why = event.text;
    return;
  }
  if (roster.epoch > 0) {
    Cause& before = causes_[roster.epoch - 1];
    if (before.ended_at.count() == 0) before.ended_at = now;  // heard of what others agreed on
    before.decided_at = now;
    then.why = before.text.empty() ? event.text : before.text;
  }
  reports_ = Reports(roster.members.size(), now);
  steps_.clear();
  std::erase_if(callers_, [&](const auto& one) { return one.first.first < roster.epoch; });
  then.keep = roster.members;
}

void MemberService::end_epoch(const std::string& text, Consequences& then, Time now) {
  const std::uint64_t epoch = membership_->roster().epoch;
  Cause& cause = causes_[epoch];
  cause.ended_at = now;
  const Duration silent = limits_.silent_after * 4 / 5;
  if (cause.source < Source::others && flight_) {
    const auto verdict = reports_.verdict(own_report(), silent, now);
    if (verdict && verdict->rank >= 0 &&
        reports_.silence(static_cast<std::size_t>(verdict->rank), now) > silent) {
      set_cause(epoch, verdict->text, Source::own,
                reports_.silence(static_cast<std::size_t>(verdict->rank), now));
    }
  }
  set_cause(epoch, text, Source::guess, {});
  prepare_status(then);
  then.failing = std::exchange(failure_, nullptr);
  then.why = cause.text;
}

void MemberService::set_cause(std::uint64_t epoch, std::string text, Source source,
                              Duration detect) {
  Cause& cause = causes_[epoch];
  if (cause.source >= source) return;
  cause.text = std::move(text);
  cause.source = source;
  if (source == Source::own) cause.detect = detect;
}

RankReport MemberService::own_report() const {
  RankReport own = flight_->report();
  own.has_ended = end_ != Status::End::none;
  return own;
}

bool MemberService::is_going(std::uint64_t epoch) const {
  return ended_.empty() && membership_ && membership_->state() == Membership::State::going &&
         membership_->roster().epoch == epoch;
}

// What comes.

void MemberService::on_note(Note note) {
  act([&](Consequences&, Time now) {
    if (!membership_) {
      if (note.kind != Note::Kind::decided) return;
      run_ = note.run;
      membership_.emplace(run_, setup_.self, note.members, limits_, now);
    }
    // Newcomers do not know yet which run it is.
    if (note.kind == Note::Kind::join && note.run == 0) note.run = run_;
    membership_->receive(note, now);
  });
}

void MemberService::on_status(const Status& status) {
  RankReport report;
  try {
    if (!status.report.empty()) report = rank_report_from(status.report);
  } catch (const std::exception& error) {
    return log_warn("a member's report cannot be read: {}", error.what());
  }
  act([&](Consequences&, Time now) {
    if (!membership_ || status.run != run_) return;
    if (!status.cause.empty()) set_cause(status.epoch, status.cause, Source::others, {});
    const Roster& roster = membership_->roster();
    const auto place = roster.place_of(status.from);
    if (status.epoch != roster.epoch || !place) return;
    reports_.receive(*place, status, std::move(report), now);
    if (status.end == Status::End::everywhere && end_ != Status::End::none) end_ = status.end;
    if (status.end != Status::End::none) changed_.notify_all();
  });
}

void MemberService::on_closed(MemberId member) {
  act([&](Consequences&, Time now) {
    if (!membership_) return;
    const auto place = membership_->roster().place_of(member);
    if (!place || end_ == Status::End::everywhere || reports_.end(*place) != Status::End::none) {
      return;
    }
    lose_member(*place,
                flight_ ? reports_.text_of_gone(*place, own_report(), now)
                        : fmt::format("the process of rank {} is gone", *place),
                now);
  });
}

void MemberService::on_caller(Callers::Guest guest) {
  const std::lock_guard lock(mutex_);
  if (guest.hello.meeting < 0 || callers_.size() >= kMostCallersKept) return;
  const auto epoch = static_cast<std::uint64_t>(guest.hello.meeting);
  if (membership_ && epoch < membership_->roster().epoch) return;
  callers_[{epoch, guest.hello.rank}] = std::move(guest.socket);
  changed_.notify_all();
}

void MemberService::on_tick() {
  act([&](Consequences& then, Time now) {
    if (end_ == Status::End::everywhere) return;
    if (!membership_) return knock(now, then);
    membership_->tick(now);
    judge_members(now);
    const bool is_member = membership_->state() == Membership::State::going ||
                           membership_->state() == Membership::State::agreeing;
    if (is_member && now >= status_at_) {
      status_at_ = now + limits_.heartbeat;
      prepare_status(then);
    }
    end_if_hanging(now);
  });
}

/// Who is at these addresses, and of which run?
void MemberService::knock(Time now, Consequences& then) {
  if (!ended_.empty() || now < knocked_at_ + limits_.heartbeat) return;
  knocked_at_ = now;
  if (now - started_at_ > limits_.give_up) {
    ended_ = fmt::format("none of {} addresses of members answers", setup_.contacts.size());
    ended_at_ = now;
    changed_.notify_all();
    return;
  }
  for (const Member& contact : setup_.contacts) {
    then.letters.push_back({contact,
                            {.kind = Note::Kind::join,
                             .run = run_,
                             .from = setup_.self,
                             .sequence = ++knock_sequence_}});
  }
}

// Who is lost.

void MemberService::lose_member(std::size_t place, const std::string& why, Time now) {
  const Roster& roster = membership_->roster();
  set_cause(roster.epoch, why, Source::own, reports_.silence(place, now));
  membership_->suspect(roster.members[place].id, now);
}

void MemberService::lose(std::uint64_t epoch, int rank, const std::string& why) {
  act([&](Consequences&, Time now) {
    const auto place = static_cast<std::size_t>(rank);
    if (is_going(epoch) && reports_.end(place) == Status::End::none) lose_member(place, why, now);
  });
}

void MemberService::judge_members(Time now) {
  const std::uint64_t epoch = membership_->roster().epoch;
  if (!flight_ || !is_going(epoch) || now < judged_at_ + limits_.heartbeat / 2) return;
  judged_at_ = now;
  const std::size_t own = *membership_->roster().place_of(setup_.self.id);
  const bool is_step =
      is_stepping_ && reports_.all_are_stepping(own) && steps_.size() >= kLeastSteps;
  const Duration limit =
      is_step ? std::max(limits_.missed_call, limits_.silent_after) : setup_.patience;
  if (limit.count() == 0) return;
  const auto verdict = reports_.verdict(own_report(), limit, now);
  if (!verdict) return;
  for (const int rank : verdict->lost) {
    const auto place = static_cast<std::size_t>(rank);
    if (place != own) {
      lose_member(place, verdict->text, now);
    } else {  // it is this rank that hangs: the others need not find out against its will
      set_cause(epoch, verdict->text, Source::own, {});
      membership_->leave(now);
    }
  }
  if (!verdict->lost.empty()) return;
  if (++rebuilds_ > kMostRebuilds) {
    ended_ = fmt::format("{}; the ranks have connected anew {} times, which did not help",
                         verdict->text, kMostRebuilds);
    ended_at_ = now;
  }
  set_cause(epoch, verdict->text, Source::own, limit);
  membership_->change(now);
}

void MemberService::end_if_hanging(Time now) const {
  if (ended_.empty() || knows_end_ || now - ended_at_ < setup_.grace + limits_.missed_call) return;
  log_line(LogLevel::error, fmt::format("{}; this process hangs, and is ended", ended_));
  std::_Exit(static_cast<int>(ErrorCode::peer));
}

// What the process does.

void MemberService::throw_end() const {
  if (is_leaving_) throw Left(ended_);
  throw Error(ErrorCode::peer, ended_);
}

Roster MemberService::wait_for_roster(std::int64_t epoch) {
  std::unique_lock lock(mutex_);
  knows_end_ = true;
  is_stepping_ = false;
  changed_.wait(lock, [&] {
    return !ended_.empty() || (membership_ && membership_->state() == Membership::State::going &&
                               static_cast<std::int64_t>(membership_->roster().epoch) > epoch);
  });
  if (!ended_.empty()) throw_end();
  knows_end_ = false;
  return membership_->roster();
}

bool MemberService::is_current(std::uint64_t epoch) const {
  const std::lock_guard lock(mutex_);
  return is_going(epoch);
}

std::uint64_t MemberService::run() const {
  const std::lock_guard lock(mutex_);
  return run_;
}

void MemberService::watch(std::uint64_t epoch, const std::shared_ptr<WorldFailure>& failure,
                          const std::shared_ptr<FlightRecorder>& flight) {
  act([&](Consequences& then, Time) {
    watched_ = epoch;
    if (is_going(epoch)) {
      failure_ = failure;
      flight_ = flight;
    } else {
      then.failing = failure;
      then.why = ended_.empty() ? causes_[epoch].text : ended_;
    }
  });
}

Socket MemberService::take_caller(std::uint64_t epoch, int rank) {
  std::unique_lock lock(mutex_);
  const auto is_there = [&] { return callers_.count({epoch, rank}) > 0; };
  changed_.wait_for(lock, 100ms, [&] { return is_there() || !is_going(epoch); });
  if (!is_there()) return Socket();
  auto found = callers_.extract({epoch, rank});
  return std::move(found.mapped());
}

Duration MemberService::time_to_come(std::uint64_t epoch, int rank) const {
  const std::lock_guard lock(mutex_);
  const bool is_in_step = is_going(epoch) && reports_.is_stepping(static_cast<std::size_t>(rank));
  return is_in_step ? std::max(kLeastTimeToCome, limits_.missed_call) : setup_.timeout;
}

MemberService::Change MemberService::change_of(std::uint64_t epoch) const {
  const std::lock_guard lock(mutex_);
  const auto found = causes_.find(epoch);
  if (found == causes_.end()) return {};
  const Cause& cause = found->second;
  return {.cause = cause.text,
          .detect = cause.detect,
          .agree = cause.decided_at - cause.ended_at,
          .decided_at = cause.decided_at};
}

void MemberService::stepping(bool is_in_step) {
  act([&](Consequences& then, Time now) {
    if (is_in_step) {
      stepping_since_ = now;
    } else if (is_stepping_) {
      measure_step(now - stepping_since_, then);
    }
    is_stepping_ = is_in_step;
  });
}

void MemberService::measure_step(Duration step, Consequences& then) {
  steps_.push_back(step);
  if (steps_.size() > kMostSteps) steps_.pop_front();
  if (steps_.size() < kLeastSteps) return;
  std::vector<Duration> sorted(steps_.begin(), steps_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  limits_ = derive_limits(setup_.timeout, links_->round_trip(), *middle);
  membership_->set_limits(limits_);
  if (std::exchange(has_told_limits_, true) ||
      membership_->roster().members.front().id != setup_.self.id) {
    return;
  }
  then.line = text_of(limits_);
}

bool MemberService::finished(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  rebuilds_ = 0;
  return membership_->finished(step);
}

bool MemberService::wants_change() const {
  const std::lock_guard lock(mutex_);
  return membership_->state() == Membership::State::going &&
         (is_leaving_ || !membership_->waiting(now()).empty());
}

void MemberService::change() {
  act([&](Consequences&, Time now) {
    const std::uint64_t epoch = membership_->roster().epoch;
    if (!is_going(epoch)) return;
    if (is_leaving_) {
      const auto place = membership_->roster().place_of(setup_.self.id);
      set_cause(epoch, fmt::format("rank {} was told to leave", *place), Source::own, {});
      return membership_->leave(now);
    }
    const std::size_t waiting = membership_->waiting(now).size();
    if (waiting > 0) {
      set_cause(epoch, fmt::format("{} newcomer{} let in", waiting, waiting == 1 ? " is" : "s are"),
                Source::others, {});
    }
    membership_->change(now);
  });
}

void MemberService::leave() {
  const std::lock_guard lock(mutex_);
  is_leaving_ = true;
}

void MemberService::abort(const std::string& why) {
  act([&](Consequences&, Time now) {
    if (!membership_) return;
    set_cause(membership_->roster().epoch, why, Source::own, {});
    membership_->leave(now);
  });
  links_->flush(Clock::now() + 300ms);
}

void MemberService::end() {
  std::uint64_t epoch = 0;
  act([&](Consequences& then, Time) {
    epoch = watched_;
    if (!is_going(epoch)) return;
    end_ = Status::End::here;
    prepare_status(then);
  });
  {
    std::unique_lock lock(mutex_);
    const auto all_have_ended = [&] {
      for (std::size_t place = 0; place < membership_->roster().members.size(); ++place) {
        const bool is_self = membership_->roster().members[place].id == setup_.self.id;
        if (!is_self && reports_.end(place) == Status::End::none) return false;
      }
      return true;
    };
    changed_.wait(lock, [&] {
      return end_ == Status::End::everywhere || !is_going(epoch) || all_have_ended();
    });
    if (end_ != Status::End::everywhere && !is_going(epoch)) {
      end_ = Status::End::none;
      throw StoppedByPeer(ErrorCode::peer, ended_.empty() ? causes_[epoch].text : ended_, -1);
    }
    knows_end_ = true;
  }
  act([&](Consequences& then, Time) {
    end_ = Status::End::everywhere;
    prepare_status(then);
  });
  links_->flush(Clock::now() + 2s);
}

}  // namespace heddle::recover
