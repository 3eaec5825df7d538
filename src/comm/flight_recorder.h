#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/rank_report.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace heddle {

/// Who takes part in a communicator, by number in the world. `id` is the same on all of them and
/// differs between groups.
struct Group {
  std::vector<int> ranks;
  std::uint64_t id = 0;
};

/// What the caller is doing, made into text only when it is shown: "F of block 7, micro-batch 3,
/// round 2 of attention".
struct CommTag {
  const char* what = "";  ///< a literal
  std::shared_ptr<const std::string> unit = {};
  int microbatch = -1;
  int attention_round = -1;  ///< of a pass of attention that ranks share

  std::string text() const;
};

/// One call of one rank.
struct CommCall {
  using Clock = std::chrono::steady_clock;
  enum class State : std::uint8_t { queued, running, done, failed };

  std::int64_t number = 0;  ///< among the calls of this rank, from 1
  /// Among the collectives of the group, or among the messages with this tag number to or from
  /// this peer, from 1. The two sides of a call have the same.
  std::int64_t sequence = 0;
  std::string group_name = {};
  std::shared_ptr<const Group> group = {};
  CommOp op = CommOp::barrier;
  DType dtype = DType::f32;
  Shape shape = {};
  std::int64_t bytes = 0;
  int peer = -1;  ///< in the group, for send and recv
  int message_tag = 0;
  CommTag tag = {};
  State state = State::queued;
  bool is_waited_for = false;   ///< the rank does nothing else until it ends
  bool is_handed_over = false;  ///< to a device, which has not ended it
  Clock::time_point queued = {}, started = {}, waited = {}, ended = {};

  /// "all_reduce #118 of dp (f32 [512, 64], F of block 7, micro-batch 3)"
  std::string text() const;
  bool is_finished() const { return state == State::done || state == State::failed; }
};
std::string_view name_of(CommCall::State state);

/// How far a device is with a call that the host has handed to it. Any thread; answers at once.
struct DeviceProgress {
  std::function<bool()> has_begun, has_ended;
};

/// Is told, on the rank's own thread, when it begins to do nothing but wait for calls, and when it
/// goes on. One wait may lie within another; the end of one that failed is not told.
class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  virtual void begin_wait() = 0;
  virtual void end_wait() = 0;
};

/// The last calls of one rank, over all its communicators; it also knows what the rank is doing, so
/// that calls carry a tag. Thread-safe.
class FlightRecorder {
 public:
  static constexpr std::size_t kCalls = 1000;
  /// Called before every call, on the thread that makes it; false leaves the call out. For faults
  /// that tests inject: it may also sleep or throw.
  using Hook = std::function<bool(const CommCall&)>;

  /// Called with every call that has ended, on the thread that carried it out: for timelines.
  using Observer = std::function<void(const CommCall&)>;

  explicit FlightRecorder(int rank = 0) : rank_(rank) {}

  int rank() const { return rank_; }
  void set_hook(Hook hook);
  /// An empty one ends it; a call that is just being reported may still come.
  void set_observer(Observer observer);
  /// In place of the one before; as long as it lives.
  void set_wait_observer(std::weak_ptr<WaitObserver> observer);
  /// What the calls that follow are for.
  void set_tag(CommTag tag);
  /// Adds to the tag, or takes out of it (-1), which round of attention they are for.
  void set_attention_round(int round);

  /// Runs the hook on a call that is about to be made.
  bool admits(const CommCall& call) const;
  /// Numbers, tags and times the call; returns its number.
  std::int64_t add(CommCall call);
  void start(std::int64_t number);
  /// The rank's own thread does nothing but wait for it.
  void wait(std::int64_t number);
  /// Tell the observer.
  void begin_wait() const;
  void end_wait() const;
  void end(std::int64_t number, bool failed);
  /// The device goes on with the call: it stays open behind end(), until report() finds that the
  /// device has ended it. A call that the device has not come to has not begun.
  void hand_over(std::int64_t number, DeviceProgress progress);

  /// Where the rank is, for verdicts: "site 1".
  void set_place(std::string place);

  /// The rank has come to its end and will make no more calls.
  void set_finished();

  /// Oldest first.
  std::vector<CommCall> calls() const;
  /// What a watchdog needs to know about the rank now.
  RankReport report();
  /// One JSON object a line, oldest first, times in seconds since 1970.
  void write(const std::filesystem::path& path) const;

 private:
  /// A call that a device has.
  struct Handed {
    CommCall call;
    DeviceProgress progress;
    bool has_begun = false;
  };

  std::shared_ptr<WaitObserver> wait_observer() const;
  CommCall* find(std::int64_t number);
  Handed* find_handed(const CommCall& call);
  /// Ends what devices have ended. Call it with the lock.
  void look_at_devices();

  const int rank_;
  mutable std::mutex mutex_;
  Hook hook_;
  Observer observer_;
  std::weak_ptr<WaitObserver> wait_observer_;
  CommTag tag_;
  std::string place_;
  bool is_finished_ = false;
  std::int64_t made_ = 0;
  std::vector<CommCall> ring_;  // call n is at (n - 1) % kCalls
  // In the order in which a device does them. The host may be ahead by more calls than the ring
  // has.
  std::map<RankReport::Line, std::deque<Handed>> handed_;
  std::int64_t handed_over_ = 0;
  std::map<RankReport::Line, std::int64_t> begun_on_device_;
};

/// Writes rank-N.jsonl to the folder (nothing when that is empty). A failure is only logged: it
/// comes with another one that matters more.
void write_flight(const FlightRecorder& flight, const std::filesystem::path& folder);

}  // namespace heddle
