#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "comm/flight_recorder.h"
#include "tensor/stream_clock.h"

namespace heddle {

/// What passes over blocks take a rank in a step, without what it waits for other ranks meanwhile
/// (docs/design/054-stragglers.md). On a GPU that is the time of its stream: from when the device
/// has done all before a wait until what was waited for is there.
class BlockMeter final : public WaitObserver {
 public:
  explicit BlockMeter(std::unique_ptr<StreamClock> clock) : clock_(std::move(clock)) {}

  void begin_step();
  void begin_pass();
  void end_pass(bool is_forward);
  /// Counts in a pass only.
  void begin_wait() override;
  void end_wait() override;

  /// Whether seconds() may be asked only when the host has waited for the stream.
  bool is_behind() const { return clock_->is_behind(); }
  /// What a micro-batch took on one block so far, in all its passes; 0 before the first one.
  double seconds() const;

 private:
  struct Stretch {
    std::size_t from = 0, to = 0;
  };
  double sum(const std::vector<Stretch>& stretches) const;

  const std::unique_ptr<StreamClock> clock_;
  std::vector<Stretch> passes_, waits_;
  std::optional<std::size_t> pass_from_, wait_from_;
  int waits_open_ = 0;
  int forwards_ = 0;
};

}  // namespace heddle
