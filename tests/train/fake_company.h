#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "base/check.h"
#include "comm/threads/thread_world.h"
#include "recover/company.h"

namespace heddle {

/// What ends the thread of a member that is lost: nothing in the program catches it.
struct Killed {};

/// The members of a run as threads of this process, who may be lost at any of their calls. Who goes
/// on is decided here, without messages: all that are left and all that wait.
class FakeCompany {
 public:
  class Seat;

  explicit FakeCompany(std::uint64_t seed) : random_(seed) {}

  /// So many make the first epoch.
  void expect(int newcomers) {
    const std::lock_guard lock(mutex_);
    expected_ += newcomers;
  }
  /// `fatal`: the number of the call at which it is lost; 0: never. `alarm`: of the one at which it
  /// takes somebody for lost who is not.
  std::unique_ptr<Seat> seat(std::int64_t fatal = 0, std::int64_t alarm = 0);

  int epochs() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(worlds_.size());
  }
  /// Where `replaces`, an epoch waits for somebody new in place of each that is lost.
  bool replaces = false;
  /// By the number of steps that were finished (those taken again count again): places of the mesh
  /// whose members are lost together when one of them begins the next. Of runs with `replaces`,
  /// where newcomers take the places of those who are lost.
  std::map<std::int64_t, std::set<int>> losses;
  /// By the same number: the next step is not begun before somebody waits for entry, who then comes
  /// behind it.
  std::set<std::int64_t> joins;
  /// Until a member begins the step behind this one.
  void wait_for_step(std::int64_t step) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= step; });
  }

 private:
  /// Under the lock.
  void compose();
  enum class Replaced : bool { no, yes };
  void lose(Seat& seat, Replaced replaced = Replaced::yes);
  void suspect();
  /// Some have heard that the epoch has ended and promised already, others have not.
  void spread_the_word(const std::string& cause);
  bool may_compose() const;
  void end_epoch(const std::string& why) {
    if (!worlds_.empty()) worlds_.back()->failure().fail(why);
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  int expected_ = 0;            // newcomers that an epoch waits for
  std::vector<Seat*> members_;  // of the last epoch, less those that are lost or have ended
  std::vector<Seat*> waiting_;  // newcomers
  std::vector<std::unique_ptr<ThreadWorld>> worlds_;  // of all epochs: splits of them may be left
  recover::MemberId next_id_ = 1;
  std::string cause_;
  std::int64_t reached_ = -1;  // the last step that was finished, of whoever began another
};

/// One member.
class FakeCompany::Seat : public recover::Company {
 public:
  Seat(FakeCompany& hub, recover::MemberId id, std::int64_t fatal, std::int64_t alarm)
      : hub_(hub), id_(id), fatal_(fatal), alarm_(alarm) {}

  recover::MemberId self() const override { return id_; }
  recover::Epoch next() override {
    std::unique_lock lock(hub_.mutex_);
    if (!is_alive_) throw Killed();  // lost in a call of the background, which nobody waited for
    is_agreeing_ = true;
    if (!is_member_) {
      hub_.waiting_.push_back(this);
    } else {
      hub_.end_epoch("the epoch has ended");
    }
    const int seen = epoch_;
    hub_.compose();
    hub_.changed_.notify_all();
    hub_.changed_.wait(lock, [&] { return epoch_ > seen || !is_alive_; });
    if (!is_alive_) throw Killed();
    recover::Epoch epoch{.number = static_cast<std::uint64_t>(epoch_),
                         .step = step_,
                         .world = world_.get(),
                         .cause = hub_.cause_};
    for (const Seat* member : hub_.members_) epoch.members.push_back(member->id_);
    return epoch;
  }
  void stepping(bool is_in_step) override {
    if (!is_in_step) return;
    std::unique_lock lock(hub_.mutex_);
    hub_.reached_ = std::max(hub_.reached_, step_);
    hub_.changed_.notify_all();
    if (hub_.joins.contains(step_)) {
      hub_.changed_.wait(lock, [&] { return !hub_.waiting_.empty() || !is_alive_; });
    }
    const auto planned = hub_.losses.find(step_);
    if (planned == hub_.losses.end() || !planned->second.contains(place_)) return;
    const std::set<int> places = planned->second;
    hub_.losses.erase(planned);
    const std::vector<Seat*> members = hub_.members_;
    for (Seat* member : members) {
      if (places.contains(member->place_)) hub_.lose(*member);
    }
    throw Killed();
  }
  bool finished(std::int64_t step) override {
    const std::lock_guard lock(hub_.mutex_);
    if (has_promised_) return false;
    HEDDLE_CHECK(step == step_ + 1, "step {} behind {}", step, step_);
    step_ = step;
    return true;
  }
  bool wants_change() const override {
    const std::lock_guard lock(hub_.mutex_);
    return !hub_.waiting_.empty() || is_leaving_;
  }
  void change() override {
    const std::lock_guard lock(hub_.mutex_);
    hub_.cause_ = "members come or go";
    hub_.end_epoch("members come or go");
  }
  void leave() override { is_leaving_ = true; }
  void end() override { world_->all().barrier(); }

  /// Calls so far.
  std::int64_t calls() const { return calls_; }
  /// To be called for each call that it makes.
  void count_call() {
    if (fatal_ == 0) return;
    const std::int64_t call = ++calls_;
    if (call == alarm_) {
      const std::lock_guard lock(hub_.mutex_);
      hub_.suspect();
    }
    if (call < fatal_) return;
    die();
    throw Killed();
  }
  /// As a process that is gone: it takes no part in anything any more.
  void die() {
    const std::lock_guard lock(hub_.mutex_);
    hub_.lose(*this);
  }
  /// The same behind an error, which whoever came in its place would meet too: nobody comes.
  void fail() {
    const std::lock_guard lock(hub_.mutex_);
    hub_.lose(*this, Replaced::no);
  }

 private:
  friend class FakeCompany;
  FakeCompany& hub_;
  const recover::MemberId id_;
  const std::int64_t fatal_, alarm_;
  std::atomic<std::int64_t> calls_ = 0;
  bool is_alive_ = true, is_member_ = false, is_agreeing_ = false;
  bool has_promised_ = false, is_leaving_ = false;
  int epoch_ = -1, place_ = -1;
  std::int64_t step_ = 0;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<World>> former_;
};

/// Counts the calls of a member in all groups that come of its world.
class CountedBackend : public CommBackend {
 public:
  CountedBackend(std::shared_ptr<CommBackend> inner, std::shared_ptr<WorldFailure> failure,
                 FakeCompany::Seat& seat)
      : CommBackend(inner->rank(), inner->group()),
        inner_(std::move(inner)),
        failure_(std::move(failure)),
        seat_(seat) {}

  void run(const Collective& call) override {
    seat_.count_call();
    inner_->run(call);
  }
  void send(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override {
    seat_.count_call();
    inner_->send(data, peer, tag, std::move(done));
  }
  void recv(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override {
    seat_.count_call();
    inner_->recv(data, peer, tag, std::move(done));
  }
  std::shared_ptr<CommBackend> split(int color, int key, std::int64_t sequence) override {
    seat_.count_call();
    auto part = inner_->split(color, key, sequence);
    return part ? std::make_shared<CountedBackend>(std::move(part), failure_, seat_) : nullptr;
  }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  std::shared_ptr<WorldFailure> failure() const override { return failure_; }

 private:
  const std::shared_ptr<CommBackend> inner_;
  const std::shared_ptr<WorldFailure> failure_;
  FakeCompany::Seat& seat_;
};

inline std::unique_ptr<FakeCompany::Seat> FakeCompany::seat(std::int64_t fatal,
                                                            std::int64_t alarm) {
  const std::lock_guard lock(mutex_);
  return std::make_unique<Seat>(*this, next_id_++, fatal, alarm);
}

inline void FakeCompany::spread_the_word(const std::string& cause) {
  cause_ = cause;
  for (Seat* member : members_) member->has_promised_ = random_() % 2 == 0;
  end_epoch(cause_);
}

inline void FakeCompany::suspect() { spread_the_word("somebody seemed to be gone"); }

inline void FakeCompany::lose(Seat& seat, Replaced replaced) {
  if (!seat.is_alive_) return;
  seat.is_alive_ = false;
  std::erase(members_, &seat);
  std::erase(waiting_, &seat);
  if (replaces && replaced == Replaced::yes) ++expected_;
  spread_the_word("member " + std::to_string(seat.id_) + " is gone");
  compose();
  changed_.notify_all();
}

inline bool FakeCompany::may_compose() const {
  for (const Seat* member : members_) {
    if (!member->is_agreeing_) return false;
  }
  const bool has_all = static_cast<int>(waiting_.size()) >= expected_;
  return has_all && !(members_.empty() && waiting_.empty());
}

inline void FakeCompany::compose() {
  if (!may_compose()) return;
  std::vector<Seat*> next;
  std::int64_t step = 0;
  for (Seat* member : members_) {
    if (!member->is_leaving_) next.push_back(member);
    step = std::max(step, member->step_);
  }
  std::ranges::sort(waiting_, {}, &Seat::id_);
  for (Seat* newcomer : waiting_) next.push_back(newcomer);
  waiting_.clear();
  expected_ = 0;
  members_ = next;
  worlds_.push_back(std::make_unique<ThreadWorld>(static_cast<int>(next.size())));
  ThreadWorld& made = *worlds_.back();
  // The world is this hub's for as long as it lives.
  const std::shared_ptr<WorldFailure> failure(&made.failure(), [](WorldFailure*) {});
  std::set<int> places;
  for (const Seat* member : next) places.insert(member->place_);
  for (std::size_t rank = 0; rank < next.size(); ++rank) {
    Seat& seat = *next[rank];
    for (int place = 0; seat.place_ < 0; ++place) {
      if (places.insert(place).second) seat.place_ = place;
    }
    const Communicator& all = made.world(static_cast<int>(rank)).all();
    if (seat.world_) seat.former_.push_back(std::move(seat.world_));
    seat.world_ = std::make_unique<World>(std::make_unique<Communicator>(
        std::make_shared<CountedBackend>(all.backend(), failure, seat), all.shared_flight(),
        "world"));
    seat.is_member_ = true;
    seat.is_agreeing_ = seat.has_promised_ = false;
    seat.step_ = step;
    seat.epoch_ = static_cast<int>(worlds_.size()) - 1;
  }
}

}  // namespace heddle
