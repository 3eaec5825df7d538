#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "comm/flight_recorder.h"
#include "tensor/stream.h"

namespace heddle {

/// What a pending call and those who wait for it share. Thread-safe.
class WorkState {
 public:
  WorkState(std::shared_ptr<FlightRecorder> flight, std::int64_t call)
      : flight_(std::move(flight)), call_(call) {}
  /// Of a message between backends, which no rank made as a call: instead of being waited for, it
  /// is told to `on_end`, with what made it fail, on whichever thread ends it and perhaps under its
  /// locks.
  using OnEnd = std::function<void(const std::exception_ptr&)>;
  explicit WorkState(OnEnd on_end) : on_end_(std::move(on_end)) {}

  /// Ends the call; only the first time counts.
  void finish(std::exception_ptr failure = nullptr) noexcept;
  /// What is left to do on the stream of whoever waits first: to order it after another stream, to
  /// copy a result to a GPU. Also keeps what the call uses until then. Set before finish().
  using OnWait = std::function<void(Stream& consumer)>;
  void set_on_wait(OnWait on_wait);
  /// A device goes on with the call behind finish(), which only means that it may be waited for on
  /// a stream. Set before finish().
  void hand_over(DeviceProgress progress) { flight_->hand_over(call_, std::move(progress)); }
  /// Blocks until the call has ended; rethrows its failure. `is_rank`: who waits is the rank's own
  /// thread, which does nothing else.
  void wait(Stream& consumer, bool is_rank = true);
  bool done() const;

 private:
  const std::shared_ptr<FlightRecorder> flight_;  // null: no call
  const std::int64_t call_ = 0;
  const OnEnd on_end_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::exception_ptr failure_;
  OnWait on_wait_;
};

/// A communication that was started. The result may be read, and the input reused, only by work
/// ordered after wait(). A default-constructed one has ended.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  /// Orders `consumer` after the communication and throws what made it fail. A CPU stream works
  /// inline, so the caller blocks; a CUDA stream waits by itself where the communication has a
  /// stream too (NCCL).
  void wait(Stream& consumer) const;
  /// The same for a thread of another communicator (Communicator::then), beside which the rank may
  /// compute: it is not the rank that waits.
  void follow(Stream& consumer) const;
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace heddle
