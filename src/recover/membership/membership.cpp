#include "recover/membership/membership.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "recover/membership/mutual.h"

namespace heddle::recover {
namespace {

double seconds_of(Duration time) { return std::chrono::duration<double>(time).count(); }

/// What the end of an epoch is known by where another has found it.
std::string text_of_end(std::size_t place, const Note& note) {
  std::vector<std::size_t> lost;
  for (std::size_t other = 0; other < note.hears.size(); ++other) {
    if (!note.hears[other] && other != place) lost.push_back(other);
  }
  if (lost.empty()) return fmt::format("rank {} asks who is there", place);
  return fmt::format("rank {} does not hear rank{} {} any more", place, lost.size() == 1 ? "" : "s",
                     fmt::join(lost, ", "));
}

constexpr int kMostPatience = 4;  // rounds that repeated attempts are apart
constexpr int kTimesAsked = 3;    // before somebody who is heard is done without

}  // namespace

Membership::Membership(std::uint64_t run, MemberId self, Roster first, const Limits& limits,
                       Time now)
    : run_(run), limits_(limits), beat_at_(now), since_(now) {
  const auto place = first.place_of(self);
  HEDDLE_CHECK(place.has_value(), "member {} is not in its own roster", self);
  place_ = *place;
  self_ = first.members[place_];
  step_ = first.step;
  roster_ = std::move(first);
  heard_.assign(roster_.members.size(), {.at = now});
}

Membership::Membership(std::uint64_t run, const Member& self, std::vector<Member> contacts,
                       const Limits& limits, Time now)
    : run_(run),
      self_(self),
      limits_(limits),
      state_(State::joining),
      contacts_(std::move(contacts)),
      beat_at_(now),
      since_(now) {}

Note Membership::make_note(Note::Kind kind) const {
  return {.kind = kind,
          .run = run_,
          .from = self_,
          .sequence = ++sequence_,
          .epoch = roster_.epoch,
          .step = step_};
}

Note Membership::make_note(Note::Kind kind, Time now) const {
  Note note = make_note(kind);
  note.hears = heard_places(now);
  note.hears[place_] = !is_leaving_;
  return note;
}

void Membership::send(const Member& to, Note note) { letters_.push_back({to, std::move(note)}); }

void Membership::send_to_members(const Note& note) {
  for (const Member& member : roster_.members) {
    if (member.id != self_.id) send(member, note);
  }
}

/// Who is in the roster goes on, who is not ends.
void Membership::answer_late(const Member& to) {
  Note note = make_note(Note::Kind::decided);
  note.step = roster_.step;
  note.members = roster_.members;
  send(to, std::move(note));
}

void Membership::beat(Time now) {
  if (now < beat_at_) return;
  beat_at_ = now + limits_.heartbeat;
  if (state_ == State::joining) {
    const Note note = make_note(Note::Kind::join);
    for (const Member& contact : contacts_) send(contact, note);
  } else {
    send_to_members(state_ == State::going ? make_note(Note::Kind::heartbeat)
                                           : make_note(Note::Kind::alarm, now));
  }
}

bool Membership::is_heard(std::size_t place, Time now) const {
  if (place == place_) return true;
  const Heard& heard = heard_[place];
  return !heard.is_suspect && now - heard.at < limits_.silent_after;
}

std::vector<bool> Membership::heard_places(Time now) const {
  std::vector<bool> places(heard_.size());
  for (std::size_t place = 0; place < places.size(); ++place) places[place] = is_heard(place, now);
  return places;
}

int Membership::turn(Time now) const {
  int before = 0;
  for (std::size_t place = 0; place < place_; ++place) before += is_heard(place, now) ? 1 : 0;
  return before;
}

std::vector<Member> Membership::waiting(Time now) const {
  std::vector<Member> members;
  for (const auto& [id, who] : waiting_) {
    if (now - who.at < limits_.silent_after) members.push_back(who.member);
  }
  return members;
}

void Membership::tick(Time now) {
  if (state_ == State::ended) return;
  const bool is_late = now - since_ >= limits_.give_up;
  if (state_ == State::joining && is_late) {
    return end(fmt::format("none of {} members has answered for {:.0f} s", contacts_.size(),
                           seconds_of(limits_.give_up)));
  }
  if (state_ == State::agreeing && is_late) {
    const auto there = heard_places(now);
    return end(
        fmt::format("{} of {} members of epoch {} answer after {:.0f} s, {} are needed to "
                    "go on: the others may have gone on, these may not",
                    std::ranges::count(there, true), there.size(), roster_.epoch,
                    seconds_of(limits_.give_up), roster_.quorum_text()));
  }
  // Who is told to leave cannot wait for a quorum that may never come.
  const Duration farewell = 2 * limits_.silent_after + 2 * kTimesAsked * limits_.round;
  if (state_ == State::agreeing && is_leaving_ && now - since_ >= farewell) {
    return end("left without an answer of the others");
  }
  beat(now);
  if (state_ == State::going) watch_silence(now);
  if (state_ != State::agreeing) return;
  if (!attempt_) {
    if (now >= try_at_) begin_attempt(now);
  } else {
    pursue(now);
  }
}

void Membership::watch_silence(Time now) {
  for (std::size_t place = 0; place < heard_.size(); ++place) {
    if (is_heard(place, now)) continue;
    return begin_agreeing(now, fmt::format("rank {} has been silent for {:.1f} s", place,
                                           seconds_of(now - heard_[place].at)));
  }
}

void Membership::suspect(MemberId member, Time now) {
  const auto place = roster_.place_of(member);
  const bool is_member = state_ == State::going || state_ == State::agreeing;
  if (!is_member || !place || *place == place_) return;
  heard_[*place].is_suspect = true;
  begin_agreeing(now, fmt::format("rank {} is lost", *place));
}

void Membership::change(Time now) {
  if (state_ == State::going) begin_agreeing(now, "newcomers are let in");
}

void Membership::leave(Time now) {
  if (state_ == State::joining) return end("left before it was let in");
  if (state_ == State::ended) return;
  is_leaving_ = true;
  begin_agreeing(now, "leaving");
}

bool Membership::finished(std::int64_t step) {
  if (state_ != State::going) return false;
  HEDDLE_CHECK(step == step_ + 1, "step {} is finished behind step {}", step, step_);
  step_ = step;
  return true;
}

void Membership::begin_agreeing(Time now, const std::string& why) {
  if (state_ != State::going) return;
  state_ = State::agreeing;
  since_ = now;
  beat_at_ = now;  // the others hear of it at once
  tries_ = 0;
  events_.push_back({State::agreeing, fmt::format("epoch {} has ended behind step {}: {}",
                                                  roster_.epoch, step_, why)});
  try_at_ = now + turn(now) * limits_.round;
  beat(now);
}

void Membership::end(std::string why) {
  state_ = State::ended;
  attempt_.reset();
  events_.push_back({State::ended, std::move(why)});
}

/// Of an epoch that was agreed on and not known here.
void Membership::install(Roster roster, Time now) {
  const auto place = roster.place_of(self_.id);
  if (state_ == State::joining && !place) {
    contacts_ = roster.members;
    since_ = now;  // they answer: how long it is to their next boundary is not its matter
    return;
  }
  const bool is_first = state_ == State::joining;
  roster_ = std::move(roster);
  attempt_.reset();
  promised_ = taken_ = {};
  if (!place) {
    const std::size_t left = roster_.members.size();
    const std::string who = fmt::format("{} member{} on", left, left == 1 ? " goes" : "s go");
    return end(is_leaving_ ? fmt::format("left; {} in epoch {}", who, roster_.epoch)
                           : fmt::format("{} without this rank in epoch {}: it was silent, slow or "
                                         "cut off; started again, it can join them",
                                         who, roster_.epoch));
  }
  if (!is_first && step_ > roster_.step) {  // no member does that; what they say is not of this run
    return end(fmt::format("epoch {} begins behind step {}, but step {} is finished here",
                           roster_.epoch, roster_.step, step_));
  }
  place_ = *place;
  step_ = roster_.step;
  state_ = State::going;
  since_ = beat_at_ = now;
  heard_.assign(roster_.members.size(), {.at = now});
  for (const Member& member : roster_.members) waiting_.erase(member.id);
  events_.push_back(
      {State::going, fmt::format("epoch {}: rank {} of {}, behind step {}", roster_.epoch, place_,
                                 roster_.members.size(), roster_.step)});
  if (is_leaving_) begin_agreeing(now, "leaving");
}

void Membership::begin_attempt(Time now) {
  const Ballot ballot{promised_.round + 1, static_cast<std::uint32_t>(place_)};
  promised_ = ballot;
  attempt_ = Attempt{.ballot = ballot, .accepted = std::vector<bool>(heard_.size())};
  attempt_->promises.emplace(place_, own_promise(ballot, now));
  ask(now);
  pursue(now);
}

/// Those who have not answered yet.
void Membership::ask(Time now) {
  ++attempt_->times_asked;
  attempt_->until = now + limits_.round;
  Note note =
      attempt_->value ? make_note(Note::Kind::propose) : make_note(Note::Kind::prepare, now);
  const Roster& roster = attempt_->value ? *attempt_->value : roster_;
  note.ballot = attempt_->ballot;
  note.step = roster.step;
  note.members = roster.members;
  for (std::size_t place = 0; place < heard_.size(); ++place) {
    const bool has_answered =
        attempt_->value ? attempt_->accepted[place] : attempt_->promises.count(place) > 0;
    if (!has_answered && place != place_) send(roster_.members[place], note);
  }
}

std::vector<bool> Membership::promised_places() const {
  std::vector<bool> places(heard_.size());
  for (const auto& [place, promise] : attempt_->promises) places[place] = true;
  return places;
}

/// All who are heard are waited for, a while: who is left out has to start again.
void Membership::pursue(Time now) {
  const std::vector<bool> promised = promised_places();
  bool all_have = true;
  for (std::size_t place = 0; place < promised.size(); ++place) {
    all_have = all_have && (promised[place] || !is_heard(place, now));
  }
  const bool is_late = now >= attempt_->until;
  const bool has_waited = is_late && attempt_->times_asked >= kTimesAsked;
  if (!attempt_->value && (all_have || has_waited) && roster_.is_quorum(promised)) {
    return choose_value(now);
  }
  if (has_waited) return try_later(now, std::min(++tries_, kMostPatience) + turn(now));
  if (is_late) ask(now);
}

void Membership::try_later(Time now, int rounds) {
  attempt_.reset();
  try_at_ = now + rounds * limits_.round;
}

/// What was taken with the highest ballot may have been decided, and is proposed again; only where
/// nothing was taken is the choice free.
void Membership::choose_value(Time now) {
  const Note* highest = nullptr;
  for (const auto& [place, promise] : attempt_->promises) {
    if (promise.taken.round == 0) continue;
    if (highest == nullptr || promise.taken > highest->taken) highest = &promise;
  }
  Roster value =
      highest != nullptr
          ? Roster{.epoch = roster_.epoch + 1, .step = highest->step, .members = highest->members}
          : compose(now);
  if (value.members.empty()) {
    const bool all_leave = std::ranges::all_of(
        attempt_->promises, [](const auto& one) { return !one.second.hears[one.first]; });
    if (all_leave) return end("left, as all do who are there");
    ++tries_;
    return try_later(now, 1 + turn(now));
  }
  attempt_->value = value;
  attempt_->times_asked = 0;
  ask(now);
  taken_ = attempt_->ballot;
  taken_value_ = std::move(value);
  count_accepted(place_, now);
}

/// Without members where too few hear each other, the first few times: who is not heard may be in a
/// moment. Later those who do go on without the others, who have promised to let them.
Roster Membership::compose(Time now) const {
  std::vector<Voter> voters;
  std::vector<bool> agree(heard_.size());  // stay, or want to leave
  for (const auto& [place, promise] : attempt_->promises) {
    voters.push_back({.place = place, .hears = promise.hears});
    agree[place] = !promise.hears[place];
  }
  Roster next{.epoch = roster_.epoch + 1, .step = roster_.step};
  for (const std::size_t place : mutually_heard(std::move(voters))) {
    next.members.push_back(roster_.members[place]);
    next.step = std::max(next.step, attempt_->promises.at(place).step);
    agree[place] = true;
  }
  if (!roster_.is_quorum(agree) && tries_ < kTimesAsked) next.members.clear();
  const std::size_t stay = next.members.size();
  for (const Member& member : waiting(now)) {
    if (next.members.size() < 2 * stay) next.members.push_back(member);
  }
  return next;
}

void Membership::count_accepted(std::size_t place, Time now) {
  attempt_->accepted[place] = true;
  if (!roster_.is_quorum(attempt_->accepted)) return;
  Note note = make_note(Note::Kind::decided);
  Roster value = *attempt_->value;
  note.epoch = value.epoch;
  note.step = value.step;
  note.members = value.members;
  send_to_members(note);
  for (const Member& member : value.members) {
    if (!roster_.has(member.id)) send(member, note);
  }
  install(std::move(value), now);
}

Note Membership::own_promise(const Ballot& ballot, Time now) const {
  Note note = make_note(Note::Kind::promise, now);
  note.ballot = ballot;
  note.taken = taken_;
  if (taken_.round > 0) {
    note.step = taken_value_.step;
    note.members = taken_value_.members;
  }
  return note;
}

void Membership::give_way(const Note& note, Time now) {
  promised_ = note.ballot;
  begin_agreeing(now, text_of_end(note.ballot.proposer, note));
  try_later(now, 2 + turn(now));
}

void Membership::refuse(const Member& to) {
  Note refusal = make_note(Note::Kind::refusal);
  refusal.ballot = promised_;
  send(to, std::move(refusal));
}

void Membership::on_prepare(const Note& note, Time now) {
  if (note.ballot < promised_) return refuse(note.from);
  give_way(note, now);
  send(note.from, own_promise(note.ballot, now));
}

void Membership::on_propose(const Note& note, Time now) {
  if (note.ballot < promised_) return refuse(note.from);
  give_way(note, now);
  taken_ = note.ballot;
  taken_value_ = {.epoch = note.epoch + 1, .step = note.step, .members = note.members};
  Note accepted = make_note(Note::Kind::accepted);
  accepted.ballot = note.ballot;
  send(note.from, std::move(accepted));
}

void Membership::on_refusal(const Note& note, Time now) {
  if (note.ballot <= promised_) return;
  promised_.round = note.ballot.round;  // the next attempt is above it
  if (attempt_) try_later(now, 1 + std::min(++tries_, kMostPatience) + turn(now));
}

void Membership::on_join(const Note& note, Time now) {
  // One that is in already has not heard of it.
  if (!roster_.has(note.from.id)) waiting_[note.from.id] = {note.from, now};
  answer_late(note.from);
}

void Membership::on_member_note(std::size_t place, const Note& note, Time now) {
  const bool is_vote = attempt_ && note.ballot == attempt_->ballot;
  switch (note.kind) {
    case Note::Kind::alarm: return begin_agreeing(now, text_of_end(place, note));
    case Note::Kind::prepare: return on_prepare(note, now);
    case Note::Kind::promise:
      if (!is_vote || attempt_->value || note.hears.size() != heard_.size()) return;
      attempt_->promises.insert_or_assign(place, note);
      return pursue(now);
    case Note::Kind::refusal: return on_refusal(note, now);
    case Note::Kind::propose: return on_propose(note, now);
    case Note::Kind::accepted:
      if (is_vote && attempt_->value) count_accepted(place, now);
      return;
    default: return;
  }
}

void Membership::receive(const Note& note, Time now) {
  if (note.run != run_ || note.from.id == self_.id) return;
  // A newer roster: said so, or that of somebody who is about to change it.
  const bool has_roster = note.kind == Note::Kind::decided || note.kind == Note::Kind::prepare;
  const bool knows_none = state_ == State::joining;
  if (has_roster && (note.epoch > roster_.epoch || knows_none) && state_ != State::ended) {
    install({.epoch = note.epoch, .step = note.step, .members = note.members}, now);
  }
  if (state_ == State::joining || note.kind == Note::Kind::decided) return;
  if (note.kind == Note::Kind::join) {
    if (state_ != State::ended) on_join(note, now);
    return;
  }
  if (note.epoch < roster_.epoch) return answer_late(note.from);
  const auto place = roster_.place_of(note.from.id);
  if (state_ == State::ended || !place) return;
  Heard& heard = heard_[*place];
  if (note.sequence > heard.sequence) heard = {now, note.sequence, heard.is_suspect};
  if (note.epoch > roster_.epoch) {
    send(note.from, make_note(Note::Kind::heartbeat));  // is answered with the newer roster
    return;
  }
  on_member_note(*place, note, now);
}

}  // namespace heddle::recover
