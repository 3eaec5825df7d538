#include "recover/membership/member_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "recover/membership/note_wire.h"

namespace heddle::recover {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// A hang of which nobody knows whose it is ends an epoch so often without a step in between.
constexpr int kMostRebuilds = 3;
constexpr std::size_t kMostCallersKept = 4 * kMostMembers;

}  // namespace

MemberService::MemberService(Socket listening, Setup setup)
    : setup_(std::move(setup)),
      run_(setup_.run),
      limits_(derive_limits(setup_.timeout, {}, setup_.least_silence)),
      started_at_(now()) {
  const bool is_newcomer = setup_.first.members.empty();
  is_in_ = !is_newcomer;
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

void MemberService::act(const std::function<void(Consequences& then, Time now)>& what) {
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
  const Causes::Cause cause = causes_.of(roster.epoch);
  then.status = {.run = run_,
                 .from = setup_.self.id,
                 .sequence = ++status_sequence_,
                 .epoch = roster.epoch,
                 .is_stepping = is_stepping_,
                 .end = end_,
                 .cause = cause.source == Source::own ? cause.text : ""};
  then.flight = flight_;
}

void MemberService::handle(const Membership::Event& event, Consequences& then, Time now) {
  changed_.notify_all();
  const Roster& roster = membership_->roster();
  if (event.state == Membership::State::agreeing) return end_epoch(event.text, then, now);
  then.failing = std::exchange(failure_, nullptr);
  flight_.reset();  // of a world whose ranks have other numbers now
  if (event.state == Membership::State::ended) {
    ended_ = hangs_.empty() ? event.text : fmt::format("{}; {}", hangs_, event.text);
    ended_at_ = now;
    then.why = ended_;
    return;
  }
  if (roster.epoch > 0) {
    causes_.decided(roster.epoch - 1, now);
    causes_.set(roster.epoch - 1, event.text, Source::guess);
    then.why = causes_.of(roster.epoch - 1).text;
  }
  reports_ = Reports(roster.members.size(), now);
  steps_.clear();
  std::erase_if(callers_, [&](const auto& one) { return one.first.first < roster.epoch; });
  // A newcomer may have called members by other addresses (--member), at which they hear it until
  // those of the roster answer: these close with the next epoch.
  if (std::exchange(is_in_, true)) then.keep = roster.members;
}

void MemberService::end_epoch(const std::string& text, Consequences& then, Time now) {
  const std::uint64_t epoch = membership_->roster().epoch;
  causes_.ended(epoch, now);
  if (causes_.of(epoch).source < Source::others) name_silent(epoch, now);
  causes_.set(epoch, text, Source::guess);
  prepare_status(then);
  then.failing = std::exchange(failure_, nullptr);
  then.why = causes_.of(epoch).text;
}

/// Where the epoch has ended because a member says nothing: what is known of that one.
void MemberService::name_silent(std::uint64_t epoch, Time now) {
  if (!flight_) return;
  const Duration silent = limits_.silent_after * 4 / 5;
  const auto verdict = reports_.verdict(own_report(), silent, now);
  if (!verdict || verdict->rank < 0) return;
  const Duration silence = reports_.silence(static_cast<std::size_t>(verdict->rank), now);
  if (silence > silent) causes_.set(epoch, verdict->text, Source::own, silence);
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
    // Another has found somebody to be lost. This one is about to, where it is a matter of time,
    // and has to say so in its promise: one against one nobody would know who of them it was. Who
    // is late meanwhile is not lost with it.
    const bool ends_epoch = note.kind == Note::Kind::alarm || note.kind == Note::Kind::prepare;
    if (ends_epoch && note.run == run_ && is_going(note.epoch)) {
      judge_members(now, &note.hears);
      if (is_leaving_) go_away(now);
    }
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
    if (!status.cause.empty()) causes_.set(status.epoch, status.cause, Source::others);
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
    lateness_.look(now);
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
  causes_.set(roster.epoch, why, Source::own, reports_.silence(place, now));
  membership_->suspect(roster.members[place].id, now);
}

void MemberService::lose(std::uint64_t epoch, int rank, const std::string& why) {
  act([&](Consequences&, Time now) {
    const auto place = static_cast<std::size_t>(rank);
    if (!is_going(epoch) || reports_.end(place) != Status::End::none) return;
    const std::string meanwhile = flight_ ? at_work_with(own_report(), rank) : "";
    lose_member(place, meanwhile.empty() ? why : fmt::format("{}; {}", why, meanwhile), now);
  });
}

void MemberService::judge_members(Time now, const std::vector<bool>* heard) {
  const bool is_urgent = heard != nullptr;
  const std::uint64_t epoch = membership_->roster().epoch;
  if (!flight_ || !is_going(epoch)) return;
  if (!is_urgent && now < judged_at_ + limits_.heartbeat / 2) return;
  judged_at_ = now;
  const std::size_t own = *membership_->roster().place_of(setup_.self.id);
  const bool is_step =
      is_stepping_ && reports_.all_are_stepping(own) && steps_.size() >= kLeastSteps;
  const Duration limit =
      is_step ? std::max(limits_.missed_call, limits_.silent_after) : setup_.patience;
  if (limit.count() == 0) return;
  const auto verdict = reports_.verdict(own_report(), is_urgent ? limit * 2 / 3 : limit, now);
  if (!verdict) return;
  bool is_of_link = verdict->lost.empty();
  for (const int rank : verdict->lost) {
    const auto place = static_cast<std::size_t>(rank);
    if (is_urgent && (place >= heard->size() || (*heard)[place])) continue;
    // One that waits itself and is heard of is held up by a link, which its ends will notice.
    if (place != own && reports_.is_waiting(place) &&
        reports_.silence(place, now) < limits_.silent_after / 2) {
      is_of_link = true;
    } else if (place != own) {
      lose_member(place, verdict->text, now);
    } else {  // it is this rank that hangs: the others need not find out against its will
      causes_.set(epoch, verdict->text, Source::own);
      hangs_ = verdict->text;
      membership_->leave(now);
    }
  }
  if (!is_of_link || is_urgent) return;
  if (const auto old = reports_.verdict(own_report(), 2 * limit, now)) {
    connect_anew(*old, 2 * limit, now);
  }
}

/// A hang of which nobody knows whose it is: new connections may help.
void MemberService::connect_anew(const Verdict& verdict, Duration limit, Time now) {
  if (++rebuilds_ > kMostRebuilds) {
    ended_ = fmt::format("{}; the ranks have connected anew {} times, which did not help",
                         verdict.text, kMostRebuilds);
    ended_at_ = now;
  }
  causes_.set(membership_->roster().epoch, verdict.text, Source::own, limit);
  membership_->change(now);
}

void MemberService::end_if_hanging(Time now) const {
  if (ended_.empty() || knows_end_ || now - ended_at_ < setup_.grace + limits_.missed_call) return;
  log_line(LogLevel::error, fmt::format("{}; this process hangs, and is ended", ended_));
  std::_Exit(static_cast<int>(ErrorCode::peer));
}

}  // namespace heddle::recover
