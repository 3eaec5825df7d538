#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

std::vector<observe::SourceLoss> EvalResult::source_losses() const {
  std::vector<observe::SourceLoss> losses;
  for (const Source& source : sources) losses.push_back({source.name, source.loss});
  return losses;
}

namespace {

/// Windows that go through the model together. They are of one source, so that a rank need not know
/// which tokens are whose, of which it may have a share only.
struct EvalBatch {
  int source = 0;
  std::int64_t first = 0, rows = 0;
};

std::int64_t windows_of(const Dataset& dataset, int source, std::int64_t max_tokens) {
  const std::int64_t all = dataset.eval_windows(), own = dataset.eval_windows(source);
  if (max_tokens <= 0 || own == 0) return own;
  const std::int64_t enough = std::min(all, (max_tokens - 1) / dataset.seq_len() + 1);
  const double share = static_cast<double>(own) / static_cast<double>(all);
  return std::min(own, static_cast<std::int64_t>(std::ceil(share * static_cast<double>(enough))));
}

std::vector<EvalBatch> batches_of(const Dataset& dataset, const EvalOptions& options) {
  std::vector<EvalBatch> batches;
  std::int64_t begin = 0;
  for (int source = 0; source < dataset.source_count(); ++source) {
    const std::int64_t windows = windows_of(dataset, source, options.max_tokens);
    for (std::int64_t first = 0; first < windows; first += options.rows) {
      batches.push_back({source, begin + first, std::min(options.rows, windows - first)});
    }
    begin += dataset.eval_windows(source);
  }
  return batches;
}

double mean_loss(double sum, double targets) {
  return targets > 0 ? sum / targets : std::numeric_limits<double>::quiet_NaN();
}

/// Of the sums over all ranks.
EvalResult result_of(const Dataset& dataset, std::span<const double> losses,
                     std::span<const double> targets) {
  EvalResult result;
  const double all = std::accumulate(targets.begin(), targets.end(), 0.0);
  result.targets = static_cast<std::int64_t>(all);
  result.loss = mean_loss(std::accumulate(losses.begin(), losses.end(), 0.0), all);
  for (std::size_t i = 0; losses.size() > 1 && i < losses.size(); ++i) {
    result.sources.push_back({.name = dataset.name(static_cast<int>(i)),
                              .loss = mean_loss(losses[i], targets[i]),
                              .targets = static_cast<std::int64_t>(targets[i])});
  }
  return result;
}

}  // namespace

std::int64_t windows_to_evaluate(const Dataset& dataset, std::int64_t max_tokens) {
  std::int64_t windows = 0;
  for (int source = 0; source < dataset.source_count(); ++source) {
    windows += windows_of(dataset, source, max_tokens);
  }
  return windows;
}

EvalResult evaluate(const Model& model, const Dataset& dataset, const EvalOptions& options,
                    Stream& stream, Memory& memory) {
  const std::vector<EvalBatch> batches = batches_of(dataset, options);
  const std::int64_t windows = windows_to_evaluate(dataset, options.max_tokens);
  const Mesh& mesh = model.mesh();
  const auto replicas = static_cast<std::size_t>(mesh.shape().size({Axis::site, Axis::dp}));
  const auto own =
      static_cast<std::size_t>(mesh.coord(Axis::site) * mesh.size(Axis::dp) + mesh.coord(Axis::dp));
  // Losses and targets, by source.
  Memory host = memory.for_host();
  const auto sources = static_cast<std::size_t>(dataset.source_count());
  const Tensor sums =
      host.zeros({2, static_cast<std::int64_t>(sources)}, DType::f64, MemoryTag::workspace);
  const auto losses_of = sums.host<double>().first(sources);
  const auto targets_of = sums.host<double>().last(sources);
  std::optional<RoutingRecorder> recorder;
  if (options.routing != nullptr) {
    recorder.emplace(model, options.rows * dataset.seq_len(), host, *options.routing);
  }
  std::int64_t done = 0;
  for (std::size_t round = 0; round < batches.size(); round += replicas) {
    // A replica for which none is left repeats the first, uncounted: all ranks take part in every
    // round.
    const bool counts = round + own < batches.size();
    const EvalBatch& from = batches[counts ? round + own : 0];
    const auto source = static_cast<std::size_t>(from.source);
    const Batch batch = dataset.eval_batch(from.first, from.rows, host);
    const Tensor losses = model.losses(to_microbatch(batch), stream, memory,
                                       recorder ? recorder->begin_round() : OnChoices());
    if (recorder) recorder->end_round(counts ? batch.targets_BS : Tensor(), stream);
    if (counts) {
      if (losses.defined()) {
        const Tensor on_host = to_host(losses, stream);
        const auto values = on_host.host<double>();
        losses_of[source] = std::accumulate(values.begin(), values.end(), losses_of[source]);
      }
      // Ranks of cp have shares of the same tokens.
      if (mesh.coord(Axis::cp) == 0) targets_of[source] += static_cast<double>(batch.target_count);
    }
    for (std::size_t i = round; i < std::min(round + replicas, batches.size()); ++i) {
      done += batches[i].rows;
    }
    if (options.on_progress && !options.on_progress(done, windows)) break;
  }
  mesh.sum(sums, kDataAxes, stream);  // behind which targets are the same on ranks of tp and pp
  mesh.sum(sums.slice(0, 0, 1), kStepAxes.without(kTokenAxes), stream);
  return result_of(dataset, losses_of, targets_of);
}

}  // namespace heddle
