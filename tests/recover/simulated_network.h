#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "recover/membership/membership.h"
#include "recover/membership/note_wire.h"

namespace heddle::recover {

using std::chrono::milliseconds;

inline constexpr Limits kLimits{.heartbeat = milliseconds(100),
                                .silent_after = milliseconds(500),
                                .missed_call = milliseconds(1000),
                                .round = milliseconds(300),
                                .give_up = milliseconds(8000)};

inline const Token& right_token() {
  static const Token token("the token of this run", "a test");
  return token;
}
inline const Token& wrong_token() {
  static const Token token("the token of another", "a test");
  return token;
}

/// Processes of a run that train in steps, and the network between them: what is sent is lost,
/// late, repeated, out of order or damaged, links and processes fail. All of it follows from the
/// seed. Finds out when there are two histories.
class SimulatedNetwork {
 public:
  using Time = Membership::Time;
  struct Weather {
    double loss = 0.0, repeats = 0.0, damage = 0.0;
    Time shortest = milliseconds(1), longest = milliseconds(5);
    bool uses_bytes = false;  ///< notes travel sealed, not as they are
  };
  struct Process {
    std::optional<Membership> membership;
    bool is_killed = false, is_frozen = false, is_leaving = false;
    Token token = right_token();
    std::string last_word = {};
    std::int64_t contributed = 0;  ///< to the totals of this step of its epoch
    std::optional<Time> ended_at = {};
  };

  explicit SimulatedNetwork(std::uint64_t seed, int processes) : random_(seed) {
    Roster first;
    for (int i = 0; i < processes; ++i) first.members.push_back(address(i));
    rosters_[0] = first;
    for (int i = 0; i < processes; ++i) {
      add().membership.emplace(kRun, first.members[static_cast<std::size_t>(i)].id, first, kLimits,
                               now_);
    }
  }

  Weather weather;
  std::vector<Process> processes;
  std::function<void(int process)> on_roster = {};
  std::function<void(int process, std::int64_t step)> on_finished = {};

  Time now() const { return now_; }
  std::uint64_t dice(std::uint64_t sides) { return random_() % sides; }
  bool chance(double p) { return std::uniform_real_distribution<>(0.0, 1.0)(random_) < p; }

  /// A newcomer that knows the first processes by address.
  int join(const Token& token = right_token()) {
    const int number = static_cast<int>(processes.size());
    std::vector<Member> contacts;
    for (int i = 0; i < number; ++i) contacts.push_back(address(i));
    Process& process = add();
    process.token = token;
    process.membership.emplace(kRun, address(number), contacts, kLimits, now_);
    return number;
  }
  void kill(int number) { at(number).is_killed = true; }
  void freeze(int number, bool is_frozen = true) { at(number).is_frozen = is_frozen; }
  /// As the system tells those who are connected: at once, if their link is up.
  void close_connections(int number) {
    for (int i = 0; i < size(); ++i) {
      if (i == number || !runs(i) || !is_up(number, i)) continue;
      at(i).membership->suspect(address(number).id, now_);
      collect(i);
    }
  }
  void cut(int from, int to, bool is_cut = true) {
    if (is_cut) {
      cut_.insert({from, to});
    } else {
      cut_.erase({from, to});
    }
  }
  void split(const std::set<int>& half) {
    for (int a = 0; a < size(); ++a) {
      for (int b = 0; b < size(); ++b) {
        if (half.count(a) != half.count(b)) cut(a, b);
      }
    }
  }
  void heal() { cut_.clear(); }
  void leave(int number) {
    if (!runs(number)) return;
    at(number).is_leaving = true;
    at(number).membership->leave(now_);
    collect(number);
  }
  void change(int number) {
    if (!runs(number)) return;
    at(number).membership->change(now_);
    collect(number);
  }
  void suspect(int who, int whom) {
    if (!runs(who)) return;
    at(who).membership->suspect(address(whom).id, now_);
    collect(who);
  }

  int size() const { return static_cast<int>(processes.size()); }
  Process& at(int number) { return processes[static_cast<std::size_t>(number)]; }
  const Process& at(int number) const { return processes[static_cast<std::size_t>(number)]; }
  const Membership& member(int number) const { return *at(number).membership; }
  bool runs(int number) const { return !at(number).is_killed && !at(number).is_frozen; }
  bool is(int number, Membership::State state) const {
    return !at(number).is_killed && member(number).state() == state;
  }

  void run_for(Time time) {
    for (const Time until = now_ + time; now_ < until;) advance();
  }
  /// Until everybody who lives goes on in one epoch with living members only, or has ended. False:
  /// that did not come about in `longest`.
  bool settles(Time longest) {
    for (const Time until = now_ + longest; now_ < until;) {
      advance();
      if (is_settled()) return true;
    }
    return false;
  }
  /// The same, where whoever has heard of newcomers lets them in now and then.
  bool settles_with_newcomers(std::chrono::seconds longest) {
    using std::chrono::seconds;
    for (auto passed = seconds(0); passed < longest; passed += seconds(1)) {
      if (settles(seconds(1))) return true;
      for (int i = 0; i < size(); ++i) {
        if (!member(i).waiting(now()).empty()) change(i);
      }
    }
    return false;
  }
  bool is_settled() const {
    const Roster& newest = rosters_.rbegin()->second;
    bool somebody_goes = false;
    for (int i = 0; i < size(); ++i) {
      if (at(i).is_killed || member(i).state() == Membership::State::ended) continue;
      if (member(i).state() != Membership::State::going || member(i).roster() != newest) {
        return false;
      }
      somebody_goes = true;
    }
    if (!somebody_goes) return true;
    for (const Member& m : newest.members) {
      if (!is(number_of(m), Membership::State::going)) return false;
    }
    return true;
  }

  const std::map<std::uint64_t, Roster>& rosters() const { return rosters_; }
  const Roster& newest() const { return rosters_.rbegin()->second; }
  /// Whether of the newest roster that a living process knows a quorum lives, wants to stay, and
  /// had not ended by then. (Where all who knew of a newer one are dead, nobody can follow it.)
  bool has_quorum(Time ended_before) const {
    const Roster* known = nullptr;
    for (const Process& process : processes) {
      const Roster& own = process.membership->roster();
      if (process.is_killed || own.members.empty()) continue;
      if (known == nullptr || own.epoch > known->epoch) known = &own;
    }
    if (known == nullptr) return false;
    std::vector<bool> there;
    for (const Member& m : known->members) {
      const Process& process = at(number_of(m));
      there.push_back(!process.is_killed && !process.is_leaving &&
                      (!process.ended_at || *process.ended_at > ended_before));
    }
    return known->is_quorum(there);
  }
  const std::vector<std::string>& faults() const { return faults_; }
  std::int64_t refused() const { return refused_; }

  static Member address(int number) {
    return {.id = 1000 + static_cast<MemberId>(number) * 7,
            .host = 1,
            .port = static_cast<std::uint16_t>(number)};
  }
  static int number_of(const Member& m) { return m.port; }

 private:
  static constexpr std::uint64_t kRun = 77;
  static constexpr Time kTick = milliseconds(25);

  struct Flying {
    Time at{};
    std::uint64_t order = 0;
    int from = 0, to = 0;
    Note note = {};
    std::vector<std::byte> bytes = {};
    bool operator<(const Flying& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);  // the earliest is on top
    }
  };

  Process& add() { return processes.emplace_back(); }
  bool is_up(int from, int to) const { return cut_.count({from, to}) == 0; }

  void advance() {
    const Time until = now_ + kTick;
    while (!flying_.empty() && flying_.top().at <= until) {
      const Flying letter = flying_.top();
      flying_.pop();
      now_ = std::max(now_, letter.at);
      arrive(letter);
    }
    now_ = until;
    for (int i = 0; i < size(); ++i) {
      if (!runs(i)) continue;
      at(i).membership->tick(now_);
      collect(i);
      train(i);
    }
  }

  void arrive(const Flying& letter) {
    if (letter.to >= size() || at(letter.to).is_killed || !is_up(letter.from, letter.to)) return;
    if (at(letter.to).is_frozen) {  // waits in the socket
      Flying later = letter;
      later.at = now_ + kTick + milliseconds(1);
      flying_.push(std::move(later));
      return;
    }
    if (letter.bytes.empty()) {
      at(letter.to).membership->receive(letter.note, now_);
    } else {
      const auto note = open(letter.bytes, at(letter.to).token);
      if (note) {
        at(letter.to).membership->receive(*note, now_);
      } else {
        ++refused_;
      }
    }
    collect(letter.to);
  }

  /// Sends what it has to send, and looks at what it has decided.
  void collect(int number) {
    Process& process = at(number);
    for (Membership::Letter& letter : process.membership->take_letters()) {
      const int copies = chance(weather.loss) ? 0 : chance(weather.repeats) ? 2 : 1;
      for (int copy = 0; copy < copies; ++copy) {
        Flying flying{.at = now_ + weather.shortest,
                      .order = ++order_,
                      .from = number,
                      .to = number_of(letter.to),
                      .note = letter.note};
        flying.at += Time(static_cast<std::int64_t>(
            dice(static_cast<std::uint64_t>((weather.longest - weather.shortest).count()) + 1)));
        if (weather.uses_bytes) {
          flying.bytes = seal(letter.note, process.token);
          if (chance(weather.damage)) {
            flying.bytes[dice(flying.bytes.size())] ^= static_cast<std::byte>(1U << dice(8));
          }
        }
        flying_.push(std::move(flying));
      }
    }
    for (const Membership::Event& event : process.membership->take_events()) {
      process.last_word = event.text;
      if (event.state == Membership::State::going) note_roster(number);
      if (event.state == Membership::State::ended) {
        process.ended_at = now_;
        if (event.text.find("is finished here") != std::string::npos) fault(event.text);
      }
    }
  }

  void note_roster(int number) {
    const Roster& own = member(number).roster();
    at(number).contributed = own.step;
    const auto [known, is_new] = rosters_.insert({own.epoch, own});
    if (known->second != own) {
      fault("epoch " + std::to_string(own.epoch) + " has two rosters");
    }
    if (on_roster) on_roster(number);
    if (is_new && rosters_.count(own.epoch - 1) == 0) fault("an epoch without the one before it");
  }

  /// Gives its gradients to the next step; finishes it, some time after all members of the epoch
  /// gave theirs, if the epoch lasts so long.
  void train(int number) {
    Membership& own = *at(number).membership;
    if (own.state() != Membership::State::going || !chance(0.7)) return;
    const std::uint64_t epoch = own.roster().epoch;
    if (at(number).contributed == own.step()) {
      ++at(number).contributed;
      given_[{epoch, own.step() + 1}].insert(number);
      return;
    }
    if (given_[{epoch, own.step() + 1}].size() < own.roster().members.size()) return;
    if (!own.finished(own.step() + 1)) fault("a step is not finished in an epoch that goes on");
    if (on_finished) on_finished(number, own.step());
  }

  void fault(const std::string& text) { faults_.push_back(text); }

  std::mt19937_64 random_;
  Time now_{0};
  std::uint64_t order_ = 0;
  std::priority_queue<Flying> flying_;
  std::set<std::pair<int, int>> cut_;
  std::map<std::uint64_t, Roster> rosters_;                                // by epoch
  std::map<std::pair<std::uint64_t, std::int64_t>, std::set<int>> given_;  // by epoch and step
  std::vector<std::string> faults_;
  std::int64_t refused_ = 0;
};

}  // namespace heddle::recover
