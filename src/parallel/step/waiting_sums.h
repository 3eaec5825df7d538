#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "parallel/step/tell_step.h"

namespace heddle {

/// Of a step that is told: gradients that are complete and wait for the windows of a rank's blocks
/// (SumWindows), in the order in which they became so.
class WaitingSums {
 public:
  /// Is told what begins: beside experts, beside the rest, or at once.
  using Begin = std::function<void(StepOp::Kind kind, int bucket, const StepOp::Slice& slice)>;

  /// All of them outlive it.
  WaitingSums(const RankUnits& units, const SumWindows& windows, Begin begin);

  /// Whether gradients of the bucket wait: plain ones that are kept whole, while windows are left.
  bool takes(int bucket) const;
  void add(int bucket) { waiting_.push_back({bucket}); }
  /// A backward pass over the unit begins, one of so many: the last one has the unit's window, if
  /// there is one.
  bool has_window(int unit, int passes);
  void open_window(int unit);
  /// The pass has ended. Behind the last window everything begins.
  void close_window();
  bool is_empty() const { return waiting_.empty(); }

 private:
  struct Waiting {
    int bucket = 0;
    std::int64_t begun = 0;  ///< slices up to here are under way
  };

  const RankUnits::Bucket& bucket_at(int bucket) const {
    return units_.buckets[static_cast<std::size_t>(bucket)];
  }
  /// Null: the unit has none.
  const SumWindow* window_of(const RankUnits::Unit& unit) const;
  /// Begins so many elements of what waits, or all of it.
  void begin(StepOp::Kind kind, std::int64_t elements);

  const RankUnits& units_;
  const SumWindows& windows_;
  const Begin begin_;
  std::vector<int> passes_;      // backward, by unit
  std::ptrdiff_t windows_left_;  // units whose last backward pass is still to come
  std::deque<Waiting> waiting_;
};

}  // namespace heddle
