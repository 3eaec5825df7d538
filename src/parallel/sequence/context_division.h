#pragma once

#include "nn/context.h"
#include "parallel/sequence/attention_meter.h"

namespace heddle {

/// Gives a rank of axis cp its share of micro-batches.
class ContextDivision {
 public:
  /// `shape` has everything but tokens and documents. `windows`: of layers, each once.
  ContextDivision(const ContextShape& shape, int rank, std::vector<std::int64_t> windows = {})
      : shape_(shape), rank_(rank), windows_(std::move(windows)) {}

  /// This rank's tokens of a micro-batch in host memory, as one sequence, with their positions and
  /// targets and what it does in attention. The sequences of the micro-batch are taken for
  /// documents of one long sequence: where that spares exchanges, whole ones stay on a rank.
  MicroBatch share(const MicroBatch& whole, Memory& host);

  /// Of the attention of all shares.
  AttentionMeter& meter() { return *meter_; }

 private:
  ContextShape shape_;
  int rank_;
  std::vector<std::int64_t> windows_;
  const std::shared_ptr<AttentionMeter> meter_ = std::make_shared<AttentionMeter>();
  std::shared_ptr<const RankContext>
      last_;  // most micro-batches have documents like the one before
  std::shared_ptr<const TokenPlaces> places_;  // of the same
};

}  // namespace heddle
