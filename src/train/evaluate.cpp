#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace heddle {

double EvalResult::perplexity() const { return std::exp(loss); }

MicroBatch to_microbatch(const Batch& batch) {
  return {.ids = batch.ids_BS,
          .targets = batch.targets_BS,
          .positions = batch.positions_BS,
          .first_key = batch.first_key_BS};
}

EvalResult evaluate(const Model& model, const Dataset& dataset, const EvalOptions& options,
                    Stream& stream, Memory& memory) {
  std::int64_t windows = dataset.eval_windows();
  if (options.max_tokens > 0) {
    const std::int64_t enough = (options.max_tokens + dataset.seq_len() - 1) / dataset.seq_len();
    windows = std::min(windows, enough);
  }
  double sum = 0.0;
  EvalResult result;
  for (std::int64_t first = 0; first < windows; first += options.rows) {
    const Batch batch = dataset.eval_batch(first, std::min(options.rows, windows - first), memory);
    const Tensor losses = model.losses(to_microbatch(batch), stream, memory);
    const auto values = losses.host<double>();
    sum = std::accumulate(values.begin(), values.end(), sum);
    result.targets += batch.target_count;
    const std::int64_t done = std::min(first + options.rows, windows);
    if (options.on_progress && !options.on_progress(done, windows)) break;
  }
  result.loss = result.targets > 0 ? sum / static_cast<double>(result.targets) : 0.0;
  return result;
}

}  // namespace heddle
