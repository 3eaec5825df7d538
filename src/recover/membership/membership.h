#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recover/membership/limits.h"
#include "recover/membership/note.h"

namespace heddle::recover {

/// Who belongs to a run, as one of its processes knows it, and how that changes
/// (docs/design/050-runs-that-outlive-ranks.md). Has no clock and no connections: it is told what
/// came and what time it is, and says what is to be sent and what was decided.
///
/// What holds whatever is lost, late, repeated or killed: an epoch has one roster, the same for
/// all who come to know it; and nobody in it had finished a later step than it goes on from. When
/// a quorum of the last roster is alive and connected, it goes on; whoever finds none ends.
///
/// Not thread-safe.
class Membership {
 public:
  using Time = std::chrono::nanoseconds;  ///< since any moment

  /// `going`: finishes steps. `agreeing`: has promised to finish none in this epoch. `ended`: the
  /// run does without this process, or it without a run; it still answers those who are late.
  enum class State : std::uint8_t { joining, going, agreeing, ended };

  /// One of those who start a run together: `first` has it.
  Membership(std::uint64_t run, MemberId self, Roster first, const Limits& limits, Time now);
  /// A newcomer, who knows where some members are, or were (their ids do not matter).
  Membership(std::uint64_t run, const Member& self, std::vector<Member> contacts,
             const Limits& limits, Time now);

  // What happens. Times never go back.

  /// To be called several times per heartbeat.
  void tick(Time now);
  /// From the wire, sealed with the run's token.
  void receive(const Note& note, Time now);
  /// Of this member nothing is to be expected in this epoch: its connection is closed, or it makes
  /// no calls.
  void suspect(MemberId member, Time now);
  /// Ends the epoch without a loss, behind a finished step: to let in those who wait.
  void change(Time now);
  /// The same, to go away: ends when the others have agreed to go on without this process.
  void leave(Time now);
  /// This process knows that the step is complete on all ranks. False: the epoch has ended before,
  /// and the step does not count; nothing of it may be kept. Steps are finished one by one.
  bool finished(std::int64_t step);
  void set_limits(const Limits& limits) { limits_ = limits; }

  State state() const { return state_; }
  /// The last that is known; of a newcomer without members until it hears of one.
  const Roster& roster() const { return roster_; }
  std::int64_t step() const { return step_; }
  const Member& self() const { return self_; }
  /// Newcomers that may be let in.
  std::vector<Member> waiting(Time now) const;

  // What follows. Each is handed out once.

  struct Letter {
    Member to;
    Note note;
  };
  std::vector<Letter> take_letters() { return std::exchange(letters_, {}); }

  struct Event {
    State state = State::going;  ///< `going`: a new roster
    std::string text;            ///< for the user
  };
  std::vector<Event> take_events() { return std::exchange(events_, {}); }

 private:
  struct Heard {
    Time at{};
    std::uint64_t sequence = 0;
    bool is_suspect = false;  ///< in this epoch, whatever comes from it
  };
  struct Waiting {
    Member member;
    Time at{};
  };
  /// An attempt of this member's to have a roster agreed on.
  struct Attempt {
    Ballot ballot;
    std::map<std::size_t, Note> promises = {};  // by place
    std::optional<Roster> value = {};           // once there are enough of them
    std::vector<bool> accepted;
    int times_asked = 0;  // for what is waited for
    Time until{};
  };

  Note make_note(Note::Kind kind) const;
  /// That says who is heard.
  Note make_note(Note::Kind kind, Time now) const;
  void send(const Member& to, Note note);
  void send_to_members(const Note& note);
  void answer_late(const Member& to);
  void beat(Time now);
  bool is_heard(std::size_t place, Time now) const;
  std::vector<bool> heard_places(Time now) const;
  /// How many before this one in the roster are heard: they propose first.
  int turn(Time now) const;

  void begin_agreeing(Time now, const std::string& why);
  void end(std::string why);
  void install(Roster roster, Time now);
  void watch_silence(Time now);

  // As one who proposes.
  void begin_attempt(Time now);
  void try_later(Time now, int rounds);
  void ask(Time now);
  void pursue(Time now);
  std::vector<bool> promised_places() const;
  void choose_value(Time now);
  Roster compose(Time now) const;
  void count_accepted(std::size_t place, Time now);

  // As one who is asked.
  Note own_promise(const Ballot& ballot, Time now) const;
  void refuse(const Member& to);
  void on_prepare(const Note& note, Time now);
  void on_propose(const Note& note, Time now);
  void on_refusal(const Note& note, Time now);
  void on_join(const Note& note, Time now);
  void on_member_note(std::size_t place, const Note& note, Time now);
  /// Someone with a lower place or a higher ballot is at it: gives way.
  void give_way(const Note& note, Time now);

  const std::uint64_t run_;
  Member self_;
  std::size_t place_ = 0;  // in the roster
  Limits limits_;
  State state_ = State::going;
  Roster roster_;
  std::int64_t step_ = 0;
  bool is_leaving_ = false;
  std::vector<Member> contacts_;
  std::vector<Heard> heard_;  // by place
  std::map<MemberId, Waiting> waiting_;
  Time beat_at_{}, since_{}, try_at_{};  // next heartbeat; in this state since; next attempt
  int tries_ = 0;
  mutable std::uint64_t sequence_ = 0;

  Ballot promised_, taken_;  // in this epoch
  Roster taken_value_;
  std::optional<Attempt> attempt_;

  std::vector<Letter> letters_;
  std::vector<Event> events_;
};

}  // namespace heddle::recover
