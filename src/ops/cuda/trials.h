#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace heddle::ops::cuda {

/// Which of `count` ways of doing the same is the fastest. run(i) queues way i on the stream, or
/// returns false where it cannot be done. Each is timed alone first. Those that are not far
/// behind are then timed under load, until the card's power limit sets its clocks: a way that needs
/// less energy wins there, as it does in a training step. The earlier one wins where times
/// measure as equal, and 0 where nothing can be done.
int fastest_way(int count, const std::function<bool(int)>& run, cudaStream_t stream);

}  // namespace heddle::ops::cuda
