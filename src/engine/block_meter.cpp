#include "engine/block_meter.h"

#include <utility>

namespace heddle {

void BlockMeter::begin_step() {
  clock_->forget();
  passes_.clear();
  waits_.clear();
  pass_from_.reset();
  wait_from_.reset();
  waits_open_ = forwards_ = 0;
}

void BlockMeter::begin_pass() { pass_from_ = clock_->mark(); }

void BlockMeter::end_pass(bool is_forward) {
  passes_.push_back({*std::exchange(pass_from_, std::nullopt), clock_->mark()});
  if (is_forward) ++forwards_;
}

void BlockMeter::begin_wait() {
  if (waits_open_++ == 0 && pass_from_) wait_from_ = clock_->mark();
}

void BlockMeter::end_wait() {
  if (--waits_open_ > 0 || !wait_from_) return;
  waits_.push_back({*std::exchange(wait_from_, std::nullopt), clock_->mark()});
}

double BlockMeter::sum(const std::vector<Stretch>& stretches) const {
  double seconds = 0.0;
  for (const auto& [from, to] : stretches) seconds += clock_->seconds(from, to);
  return seconds;
}

double BlockMeter::seconds() const {
  return forwards_ == 0 ? 0.0 : (sum(passes_) - sum(waits_)) / forwards_;
}

}  // namespace heddle
