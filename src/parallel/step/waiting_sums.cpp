#include "parallel/step/waiting_sums.h"

#include <algorithm>
#include <utility>

namespace heddle {
namespace {

/// Slices of gradients begin at multiples of this, so that they lie as whole buckets do.
constexpr std::int64_t kSliceElements = 64;

/// What the sum leaves with a rank.
std::int64_t part_of(const RankUnits::Bucket& bucket) {
  return bucket.zero == 0 ? bucket.elements : bucket.held;
}

}  // namespace

WaitingSums::WaitingSums(const RankUnits& units, const SumWindows& windows, Begin begin)
    : units_(units),
      windows_(windows),
      begin_(std::move(begin)),
      passes_(units.units.size(), 0),
      windows_left_(std::ranges::count_if(
          units.units, [&](const RankUnits::Unit& unit) { return window_of(unit) != nullptr; })) {}

bool WaitingSums::takes(int bucket) const {
  const RankUnits::Bucket& of = bucket_at(bucket);
  return windows_left_ > 0 && of.zero < 2 && of.coded_gradients == 0 && !of.over.empty();
}

const SumWindow* WaitingSums::window_of(const RankUnits::Unit& unit) const {
  const auto block = static_cast<std::size_t>(unit.block);
  return unit.block < 0 || block >= windows_.size() ? nullptr : &windows_[block];
}

bool WaitingSums::has_window(int unit, int passes) {
  const auto index = static_cast<std::size_t>(unit);
  return window_of(units_.units[index]) != nullptr && ++passes_[index] == passes;
}

void WaitingSums::open_window(int unit) {
  const SumWindow& window = *window_of(units_.units[static_cast<std::size_t>(unit)]);
  begin(StepOp::Kind::beside_experts, window.with_experts);
  begin(StepOp::Kind::beside_rest, window.with_rest);
}

void WaitingSums::close_window() {
  if (--windows_left_ > 0) return;
  for (const auto& [bucket, begun] : std::exchange(waiting_, {})) {
    const StepOp::Slice rest{begun, part_of(bucket_at(bucket))};
    begin_(StepOp::Kind::reduce, bucket, begun == 0 ? StepOp::Slice{} : rest);
  }
}

void WaitingSums::begin(StepOp::Kind kind, std::int64_t elements) {
  while (elements > 0 && !waiting_.empty()) {
    Waiting& first = waiting_.front();
    const std::int64_t part = part_of(bucket_at(first.bucket)),
                       parts = bucket_at(first.bucket).elements / part,
                       line = parts * kSliceElements;
    const std::int64_t wanted = (elements + line - 1) / line * kSliceElements;
    const StepOp::Slice slice{first.begun, std::min(part, first.begun + wanted)};
    begin_(kind, first.bucket, slice);
    elements -= parts * slice.count();
    first.begun = slice.end;
    if (slice.end == part) waiting_.pop_front();
  }
}

}  // namespace heddle
