#pragma once

#include <functional>

#include "data/dataset.h"
#include "engine/model.h"
#include "observe/metrics.h"
#include "parallel/experts/expert_placement.h"

namespace heddle {

struct EvalResult {
  struct Source {
    std::string name;
    double loss = 0.0;  ///< mean over the source's tokens that were predicted; NaN of none
    std::int64_t targets = 0;
  };
  double loss = 0.0;  ///< mean over the tokens that were predicted; NaN of none
  std::int64_t targets = 0;
  std::vector<Source> sources = {};  ///< where there are several; in the dataset's order
  double perplexity() const;
  /// The sources as sinks take them.
  std::vector<observe::SourceLoss> source_losses() const;
};

struct EvalOptions {
  std::int64_t rows = 1;        ///< sequences at a time
  std::int64_t max_tokens = 0;  ///< stop after so many; 0: all held-out text
  /// Called with (windows done, windows in all); returns false to give up. May be absent.
  std::function<bool(std::int64_t, std::int64_t)> on_progress = {};
  /// Becomes which experts the tokens took that were predicted from, in the order of the text, on
  /// every rank; null: nobody asks. For models with experts.
  RoutingTrace* routing = nullptr;
};

/// How many of the dataset's held-out windows have that many tokens; 0 tokens: all windows. Each
/// source has its share of them, and at least one.
std::int64_t windows_to_evaluate(const Dataset& dataset, std::int64_t max_tokens);

/// The loss over a dataset's held-out windows, and over those of each source, which data-parallel
/// ranks of all sites share out.
/// All ranks of the model's mesh call it; on_progress must answer alike on all. Giving up gives
/// what was seen so far.
EvalResult evaluate(const Model& model, const Dataset& dataset, const EvalOptions& options,
                    Stream& stream, Memory& memory);

/// A micro-batch over the tensors of a data batch.
MicroBatch to_microbatch(const Batch& batch);

}  // namespace heddle
