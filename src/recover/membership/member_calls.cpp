#include <fmt/format.h>

#include <algorithm>

#include "comm/stopped_by_peer.h"
#include "recover/company.h"
#include "recover/membership/member_service.h"

// What the process does: the calls of whoever computes. What comes is in member_service.cpp.

namespace heddle::recover {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::size_t kMostSteps = 32;
constexpr Duration kLeastTimeToCome = 10s;

}  // namespace

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
      then.why = ended_.empty() ? causes_.of(epoch).text : ended_;
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

Causes::Cause MemberService::cause_of(std::uint64_t epoch) const {
  const std::lock_guard lock(mutex_);
  return causes_.of(epoch);
}

void MemberService::stepping(bool is_in_step) {
  act([&](Consequences& then, Time now) {
    if (is_in_step) {
      stepping_since_ = now;
    } else if (is_stepping_ && is_going(watched_)) {
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
  limits_ = derive_limits(
      setup_.timeout,
      {.round_trip = links_->round_trip(), .step = *middle, .late = lateness_.longest(now())},
      setup_.least_silence);
  membership_->set_limits(limits_);
  if (std::exchange(has_told_limits_, true) ||
      membership_->roster().members.front().id != setup_.self.id) {
    return;
  }
  then.line = text_of(limits_);
}

/// Others may have agreed on another epoch already, of which this process knows nothing yet: what
/// it says is about the one in which it computes.
bool MemberService::finished(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  if (!is_going(watched_)) return false;
  rebuilds_ = 0;
  return membership_->finished(step);
}

bool MemberService::wants_change() const {
  const std::lock_guard lock(mutex_);
  return is_going(watched_) && (is_leaving_ || !membership_->waiting(now()).empty());
}

void MemberService::change() {
  act([&](Consequences&, Time now) {
    if (!is_going(watched_)) return;  // another has asked for it before
    if (is_leaving_) return go_away(now);
    const std::size_t waiting = membership_->waiting(now).size();
    if (waiting > 0) {
      causes_.set(watched_,
                  fmt::format("{} newcomer{} let in", waiting, waiting == 1 ? " is" : "s are"),
                  Source::own);
    }
    membership_->change(now);
  });
}

/// With the end of this epoch, whatever it ends of.
void MemberService::go_away(Time now) {
  const Roster& roster = membership_->roster();
  if (const auto place = roster.place_of(setup_.self.id)) {
    causes_.set(roster.epoch, fmt::format("rank {} was told to leave", *place), Source::own);
  }
  membership_->leave(now);
}

void MemberService::leave() {
  const std::lock_guard lock(mutex_);
  is_leaving_ = true;
}

void MemberService::abort(const std::string& why) {
  act([&](Consequences&, Time now) {
    if (!membership_) return;
    causes_.set(membership_->roster().epoch, why, Source::own);
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
      throw StoppedByPeer(ErrorCode::peer, ended_.empty() ? causes_.of(epoch).text : ended_, -1);
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
