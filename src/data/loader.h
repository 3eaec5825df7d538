#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "data/dataset.h"

namespace heddle {

/// Which samples this process reads: step t of the run is made of samples
/// [t * samples_per_step, (t + 1) * samples_per_step), of which this process takes
/// `batches_per_step` micro-batches of `rows_per_batch` from `first_in_step` on. With one process,
/// first_in_step is 0 and batches_per_step * rows_per_batch is samples_per_step.
struct BatchPlan {
  std::int64_t samples_per_step = 0;
  std::int64_t first_in_step = 0;
  std::int64_t rows_per_batch = 0;
  std::int64_t batches_per_step = 0;

  std::int64_t first_sample(std::int64_t step, std::int64_t micro_batch) const {
    return step * samples_per_step + first_in_step + micro_batch * rows_per_batch;
  }
};

/// Reads training micro-batches in order, on a thread that stays `ahead` batches in front; with 0,
/// each is read when it is asked for. Its whole state is the step it starts at: a new Loader at
/// step t continues a run bit for bit. Not thread-safe; `dataset` and `memory` outlive it.
class Loader {
 public:
  Loader(const Dataset& dataset, const BatchPlan& plan, Memory& memory, std::int64_t first_step,
         std::int64_t ahead = 2);

  /// Micro-batch by micro-batch, step by step. Rethrows what reading threw.
  Batch next();
  /// Time next() has spent waiting for data since the previous call of this function.
  double take_wait_seconds();

  /// The micro-batch itself, read now: a pure function.
  Batch batch(std::int64_t step, std::int64_t micro_batch, const std::stop_token& stop = {}) const;

 private:
  void read_ahead(const std::stop_token& stop);
  /// The batch at the cursor, which moves on.
  Batch read(const std::stop_token& stop);

  const Dataset& dataset_;
  const BatchPlan plan_;
  Memory& memory_;
  const std::size_t ahead_;
  std::int64_t step_, micro_batch_ = 0;  // the cursor; the reader's, where there is one
  double wait_seconds_ = 0;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::exception_ptr failure_;
  std::jthread reader_;  // last: stops and joins before the rest goes
};

}  // namespace heddle
