#include "tensor/stream_clock.h"

#include <utility>
#include <vector>

#include "base/clock.h"
#include "tensor/device_runtime.h"

namespace heddle {
namespace {

class HostClock final : public StreamClock {
 public:
  explicit HostClock(std::function<double()> now) : now_(std::move(now)) {}

  std::size_t mark() override {
    points_.push_back(now_());
    return points_.size() - 1;
  }
  double seconds(std::size_t from, std::size_t to) const override {
    return points_[to] - points_[from];
  }
  void forget() override { points_.clear(); }
  bool is_behind() const override { return false; }

 private:
  const std::function<double()> now_;
  std::vector<double> points_;
};

/// Keeps its points for later ones: making one takes the driver longer than noting it.
class DeviceClock final : public StreamClock {
 public:
  explicit DeviceClock(Stream& stream) : stream_(stream) {}

  std::size_t mark() override {
    if (used_ == points_.size()) points_.push_back(device_runtime::make_time_point());
    device_runtime::note_time(points_[used_].get(), stream_.native());
    return used_++;
  }
  double seconds(std::size_t from, std::size_t to) const override {
    return device_runtime::seconds_between(points_[from].get(), points_[to].get());
  }
  void forget() override { used_ = 0; }
  bool is_behind() const override { return true; }

 private:
  Stream& stream_;
  std::vector<std::shared_ptr<void>> points_;
  std::size_t used_ = 0;
};

}  // namespace

std::unique_ptr<StreamClock> make_host_clock(std::function<double()> now) {
  return std::make_unique<HostClock>(std::move(now));
}

std::unique_ptr<StreamClock> make_stream_clock(Stream& stream) {
  if (stream.native() != nullptr) return std::make_unique<DeviceClock>(stream);
  return make_host_clock([watch = Stopwatch()] { return watch.seconds(); });
}

}  // namespace heddle
