#pragma once

#include <functional>

#include "data/dataset.h"
#include "engine/model.h"
#include "parallel/experts/expert_placement.h"

namespace heddle {

struct EvalResult {
  double loss = 0.0;  ///< mean over the tokens that were predicted
  std::int64_t targets = 0;
  double perplexity() const;
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

/// How many of the dataset's held-out windows have that many tokens; 0 tokens: all windows.
std::int64_t windows_to_evaluate(const Dataset& dataset, std::int64_t max_tokens);

/// The loss over a dataset's held-out windows, which data-parallel ranks of all sites share out.
/// All ranks of the model's mesh call it; on_progress must answer alike on all. Giving up gives
/// what was seen so far.
EvalResult evaluate(const Model& model, const Dataset& dataset, const EvalOptions& options,
                    Stream& stream, Memory& memory);

/// A micro-batch over the tensors of a data batch.
MicroBatch to_microbatch(const Batch& batch);

}  // namespace heddle
