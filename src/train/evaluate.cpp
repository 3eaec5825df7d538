#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "tensor/transfer.h"
#include "train/routing_recorder.h"

namespace heddle {

double EvalResult::perplexity() const { return std::exp(loss); }

MicroBatch to_microbatch(const Batch& batch) {
  return {.ids = batch.ids_BS,
          .targets = batch.targets_BS,
          .positions = batch.positions_BS,
          .first_key = batch.first_key_BS};
}

std::int64_t windows_to_evaluate(const Dataset& dataset, std::int64_t max_tokens) {
  if (max_tokens <= 0) return dataset.eval_windows();
  const std::int64_t enough = (max_tokens - 1) / dataset.seq_len() + 1;
  return std::min(dataset.eval_windows(), enough);
}

EvalResult evaluate(const Model& model, const Dataset& dataset, const EvalOptions& options,
                    Stream& stream, Memory& memory) {
  const std::int64_t windows = windows_to_evaluate(dataset, options.max_tokens);
  const Mesh& mesh = model.mesh();
  const std::int64_t replicas = mesh.shape().size({Axis::site, Axis::dp});
  const std::int64_t own = mesh.coord(Axis::site) * mesh.size(Axis::dp) + mesh.coord(Axis::dp);
  EvalResult result;
  // Loss and targets. A replica for which no windows are left repeats the first, uncounted: all
  // ranks take part in every round.
  Memory host = memory.for_host();
  const Tensor sums = host.zeros({2}, DType::f64, MemoryTag::workspace);
  const auto totals = sums.host<double>();
  std::optional<RoutingRecorder> recorder;
  if (options.routing != nullptr) {
    recorder.emplace(model, options.rows * dataset.seq_len(), host, *options.routing);
  }
  for (std::int64_t round = 0; round < windows; round += options.rows * replicas) {
    const std::int64_t first = round + own * options.rows;
    const bool counts = first < windows;
    const Batch batch =
        counts ? dataset.eval_batch(first, std::min(options.rows, windows - first), host)
               : dataset.eval_batch(0, std::min(options.rows, windows), host);
    const Tensor losses = model.losses(to_microbatch(batch), stream, memory,
                                       recorder ? recorder->begin_round() : OnChoices());
    if (recorder) recorder->end_round(counts ? batch.targets_BS : Tensor(), stream);
    if (counts) {
      if (losses.defined()) {
        const Tensor on_host = to_host(losses, stream);
        const auto values = on_host.host<double>();
        totals[0] = std::accumulate(values.begin(), values.end(), totals[0]);
      }
      // Ranks of cp have shares of the same tokens.
      if (mesh.coord(Axis::cp) == 0) totals[1] += static_cast<double>(batch.target_count);
    }
    const std::int64_t done = std::min(round + options.rows * replicas, windows);
    if (options.on_progress && !options.on_progress(done, windows)) break;
  }
  mesh.sum(sums, kDataAxes, stream);
  result.targets = static_cast<std::int64_t>(totals[1]);  // the same on ranks of tp and pp
  mesh.sum(sums.slice(0, 0, 1), kStepAxes.without(kTokenAxes), stream);
  const double sum = totals[0];
  result.loss = result.targets > 0 ? sum / static_cast<double>(result.targets) : 0.0;
  return result;
}

}  // namespace heddle
