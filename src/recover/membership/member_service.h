#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/flight_recorder.h"
#include "comm/world_failure.h"
#include "recover/membership/causes.h"
#include "recover/membership/member_links.h"
#include "recover/membership/membership.h"
#include "recover/membership/reports.h"

namespace heddle::recover {

/// One process's part in deciding who belongs to the run, while it computes: a Membership, driven
/// by what comes over MemberLinks and by the clock, under one lock. Finds out who is lost, by
/// silence, closed connections and calls that are not made, and makes the world of an epoch fail
/// that has ended. Thread-safe.
class MemberService {
 public:
  using Time = Membership::Time;

  struct Setup {
    std::uint64_t run = 0;              ///< of a newcomer: 0, the others will say
    Member self = {};                   ///< how others reach this process
    Roster first = {};                  ///< of a newcomer without members
    std::vector<Member> contacts = {};  ///< of a newcomer: where members are, or were
    Token token = {};
    Duration timeout = {};        ///< to find a quorum, or to be let in
    Duration least_silence = {};  ///< see derive_limits
    /// For calls outside of steps; 0: for ever.
    Duration patience = {};
    /// For this process to notice that the run does without it. Then it is ended: it hangs.
    Duration grace = {};
  };
  MemberService(Socket listening, Setup setup);
  /// Who is late still gets an answer, for two rounds.
  ~MemberService();
  MemberService(const MemberService&) = delete;
  MemberService& operator=(const MemberService&) = delete;

  /// A roster behind that of `epoch` (-1: any). Waits for it. Error(peer), or Left, where there
  /// will be none for this process.
  Roster wait_for_roster(std::int64_t epoch);
  /// Whether the epoch goes on, as far as it is known here.
  bool is_current(std::uint64_t epoch) const;
  std::uint64_t run() const;

  /// Computes in this epoch: `failure` fails when it ends, if it has not ended already.
  void watch(std::uint64_t epoch, const std::shared_ptr<WorldFailure>& failure,
             const std::shared_ptr<FlightRecorder>& flight);
  /// The connection by which the rank calls to compute in this epoch, if it has. Waits for it for a
  /// moment.
  Socket take_caller(std::uint64_t epoch, int rank);
  /// How long the rank may take to come to an epoch: one that is in the middle of a step of the
  /// last one comes at once, or hangs.
  Duration time_to_come(std::uint64_t epoch, int rank) const;
  /// Nothing more comes from this rank of the epoch.
  void lose(std::uint64_t epoch, int rank, const std::string& why);

  /// How the epoch came to its end.
  Causes::Cause cause_of(std::uint64_t epoch) const;
  Time now() const;

  // As in Company.
  void stepping(bool is_in_step);
  bool finished(std::int64_t step);
  bool wants_change() const;
  void change();
  void leave();
  void end();
  /// Leaves at once, for this reason; returns when the others were told.
  void abort(const std::string& why);

 private:
  using Source = Causes::Source;
  /// Before the median of steps says something about the next one.
  static constexpr std::size_t kLeastSteps = 3;
  /// What is done without the lock.
  struct Consequences {
    std::vector<Membership::Letter> letters = {};
    std::vector<Member> told = {};  ///< this status
    Status status = {};
    std::shared_ptr<FlightRecorder> flight = {};  ///< whose report goes with it
    std::shared_ptr<WorldFailure> failing = {};
    std::string why = {};
    std::optional<std::vector<Member>> keep = {};
    std::string line = {};  ///< for the user
  };

  /// Does something under the lock, and then what follows from it.
  void act(const std::function<void(Consequences& then, Time now)>& what);
  void collect(Consequences& then, Time now);
  void carry_out(Consequences& then);
  void handle(const Membership::Event& event, Consequences& then, Time now);
  void end_epoch(const std::string& text, Consequences& then, Time now);
  void name_silent(std::uint64_t epoch, Time now);
  void prepare_status(Consequences& then);

  void on_note(Note note);
  void on_status(const Status& status);
  void on_closed(MemberId member);
  void on_caller(Callers::Guest guest);
  void on_tick();
  void knock(Time now, Consequences& then);
  /// `heard`: by one for whom the epoch has ended; who is not is judged sooner, and nobody else.
  void judge_members(Time now, const std::vector<bool>* heard = nullptr);
  void connect_anew(const Verdict& verdict, Duration limit, Time now);
  void lose_member(std::size_t place, const std::string& why, Time now);
  void measure_step(Duration step, Consequences& then);
  void go_away(Time now);
  void end_if_hanging(Time now) const;
  bool is_going(std::uint64_t epoch) const;
  RankReport own_report() const;
  [[noreturn]] void throw_end() const;

  const Setup setup_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t run_ = 0;
  std::optional<Membership> membership_;  // not before a newcomer has been answered
  Limits limits_;
  Lateness lateness_;  // of the thread that takes in what comes
  bool has_told_limits_ = false;
  std::deque<Duration> steps_;  // the last ones of this epoch
  Reports reports_;             // of the roster's epoch
  Causes causes_;
  std::map<std::pair<std::uint64_t, int>, Socket> callers_;  // by epoch and rank

  // Of the world of the roster's epoch, once there is one. The failure goes when it is used.
  std::uint64_t watched_ = 0;
  std::shared_ptr<WorldFailure> failure_;
  std::shared_ptr<FlightRecorder> flight_;

  bool is_stepping_ = false, is_leaving_ = false, knows_end_ = false;
  Status::End end_ = Status::End::none;
  Time started_at_{}, stepping_since_{}, status_at_{}, judged_at_{}, knocked_at_{}, ended_at_{};
  std::uint64_t status_sequence_ = 0, knock_sequence_ = 0;
  bool is_in_ = false;  // a newcomer has been let in
  int rebuilds_ = 0;    // since a step was finished
  std::string hangs_;   // how this process found out that it does; else empty
  std::string ended_;   // why the run does without this process; else empty
  std::optional<MemberLinks> links_;
};

}  // namespace heddle::recover
