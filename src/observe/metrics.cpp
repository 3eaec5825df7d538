#include "observe/metrics.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/log.h"

namespace heddle::observe {

void SinkSet::add(std::unique_ptr<Sink> sink) { sinks_.push_back(std::move(sink)); }

template <class Call>
void SinkSet::for_each(const Call& call) {
  std::erase_if(sinks_, [&](const std::unique_ptr<Sink>& sink) {
    try {
      call(*sink);
      return false;
    } catch (const std::exception& e) {
      log_warn("{} metrics stop here, training goes on: {}", sink->name(), e.what());
      return true;
    }
  });
}

void SinkSet::on_step(const StepMetrics& metrics) {
  for_each([&](Sink& sink) { sink.on_step(metrics); });
}
void SinkSet::on_eval(const EvalMetrics& metrics) {
  for_each([&](Sink& sink) { sink.on_eval(metrics); });
}
void SinkSet::on_event(const RunEvent& event) {
  for_each([&](Sink& sink) { sink.on_event(event); });
}
void SinkSet::close() {
  for_each([](Sink& sink) { sink.close(); });
  sinks_.clear();
}

void StepPace::add(double seconds) {
  constexpr std::size_t kWindow = 64;
  if (recent_.size() < kWindow) {
    recent_.push_back(seconds);
  } else {
    recent_[next_] = seconds;
    next_ = (next_ + 1) % kWindow;
  }
}

double StepPace::seconds_per_step() const {
  if (recent_.empty()) return 0;
  std::vector<double> sorted = recent_;
  std::sort(sorted.begin(), sorted.end());
  // 1 and 2 keep everything, 3 keep the middle one: at least one value always remains.
  const std::size_t cut = (sorted.size() + 1) / 4;
  const auto begin = sorted.begin() + static_cast<std::ptrdiff_t>(cut);
  const auto end = sorted.end() - static_cast<std::ptrdiff_t>(cut);
  return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

double StepPace::eta_seconds(std::int64_t steps_left) const {
  if (recent_.empty() && steps_left > 0) return std::numeric_limits<double>::infinity();
  return seconds_per_step() * static_cast<double>(std::max<std::int64_t>(steps_left, 0));
}

}  // namespace heddle::observe
