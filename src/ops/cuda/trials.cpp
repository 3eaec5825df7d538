#include "ops/cuda/trials.h"

#include <algorithm>
#include <vector>

#include "tensor/cuda/check.h"
#include "tensor/device_runtime.h"

namespace heddle::ops::cuda {
namespace {

/// Milliseconds of some runs in a row, on the device.
class DeviceTimer {
 public:
  explicit DeviceTimer(cudaStream_t stream) : stream_(stream) {
    HEDDLE_CUDA(cudaEventCreate(&begin_));
    HEDDLE_CUDA(cudaEventCreate(&end_));
  }
  ~DeviceTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;

  template <class Run>
  float milliseconds(int repeats, const Run& run) {
    HEDDLE_CUDA(cudaEventRecord(begin_, stream_));
    for (int i = 0; i < repeats; ++i) run();
    HEDDLE_CUDA(cudaEventRecord(end_, stream_));
    device_runtime::wait_on_host(end_);
    float result = 0.0F;
    HEDDLE_CUDA(cudaEventElapsedTime(&result, begin_, end_));
    return result;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

constexpr float kNear = 1.3F;     ///< of the best time alone, to be tried under load
constexpr float kEqual = 0.995F;  ///< of the best time so far, to be better
/// What a card's power control needs to settle, from rest and from one way to the next, and what is
/// then measured.
constexpr float kMillisecondsToWarmUp = 100.0F, kMillisecondsToSettle = 20.0F;
constexpr float kMillisecondsATurn = 40.0F;
constexpr int kMostRepeats = 1000;

struct Way {
  int index;
  float alone, under_load = 0.0F;  ///< milliseconds a run
  int repeats(float milliseconds) const {
    return std::clamp(static_cast<int>(milliseconds / alone), 1, kMostRepeats);
  }
};

/// Those nearly as fast as the best when timed alone, in the order of their index.
std::vector<Way> finalists(int count, const std::function<bool(int)>& run, DeviceTimer& timer) {
  std::vector<Way> ways;
  for (int i = 0; i < count; ++i) {
    if (!run(i)) continue;
    const auto once = [&] { run(i); };
    float time = timer.milliseconds(1, once);
    for (int n = 0; n < 2; ++n) time = std::min(time, timer.milliseconds(1, once));
    ways.push_back({.index = i, .alone = std::max(time, 1e-3F)});
  }
  const auto best = std::ranges::min_element(ways, {}, &Way::alone);
  if (best == ways.end()) return ways;
  std::erase_if(ways, [limit = kNear * best->alone](const Way& way) { return way.alone > limit; });
  return ways;
}

}  // namespace

int fastest_way(int count, const std::function<bool(int)>& run, cudaStream_t stream) {
  if (count <= 1) return 0;
  DeviceTimer timer(stream);
  std::vector<Way> ways = finalists(count, run, timer);
  if (ways.empty()) return 0;
  if (ways.size() == 1) return ways.front().index;
  for (Way& way : ways) {
    const auto once = [&] { run(way.index); };
    const bool is_first = &way == &ways.front();
    timer.milliseconds(way.repeats(is_first ? kMillisecondsToWarmUp : kMillisecondsToSettle), once);
    const int repeats = way.repeats(kMillisecondsATurn);
    way.under_load = timer.milliseconds(repeats, once) / static_cast<float>(repeats);
  }
  const Way* best = &ways.front();
  for (const Way& way : ways) {
    if (way.under_load < kEqual * best->under_load) best = &way;
  }
  return best->index;
}

}  // namespace heddle::ops::cuda
