#pragma once

#include <span>
#include <vector>

#include "nn/context.h"
#include "nn/kv_cache.h"

namespace heddle {

/// New tokens of several sequences, one of each, on their way through a model: a row each, with a
/// cache each, since sequences have different lengths (Ctx::rows).
///
/// Where rows stay with their experts (docs/design/043-experts-schedules-and-places.md), a rank has
/// the caches of all sequences and from layer to layer other rows, and batch() changes on the way.
/// All ranks know where every row is.
class DecodedRows {
 public:
  struct Sequence {
    KvCache* cache = nullptr;  ///< of all earlier tokens
    std::int32_t token = 0;    ///< the new one
    int rank = 0;              ///< that has its row at first
  };
  /// Of so many ranks, this one is `own`. Without `stays` all rows begin and end here.
  DecodedRows(std::vector<Sequence> sequences, int ranks, int own, bool stays, Memory& host);

  /// Of the rows that are here, [rows, 1].
  const MicroBatch& batch() const { return batch_; }
  bool stays() const { return stays_; }

  /// By rank the sequences whose rows it has, in the order of rows.
  using Places = std::vector<std::vector<int>>;
  const Places& places() const { return places_; }
  const std::vector<int>& here() const { return places_[static_cast<std::size_t>(own_)]; }
  void move_to(Places places);

  KvCache& cache(std::int64_t row) const { return *sequence(row).cache; }
  /// Keys and values [rows, 1, G, K] of the rows that are here.
  void store(int layer, const Tensor& k_B1GK, const Tensor& v_B1GK, Stream& stream);
  /// Where rows were when the layer's were stored, on all ranks; nowhere in a layer that was left
  /// out.
  const Places& stored(int layer) const {
    const auto at = static_cast<std::size_t>(layer);
    return at < stored_.size() ? stored_[at] : nowhere_;
  }

 private:
  const Sequence& sequence(std::int64_t row) const {
    return sequences_[static_cast<std::size_t>(here()[static_cast<std::size_t>(row)])];
  }
  void make_batch();

  const std::vector<Sequence> sequences_;
  const int own_;
  const bool stays_;
  Memory host_;
  const Places nowhere_;
  Places places_;
  std::vector<Places> stored_;  // by layer
  MicroBatch batch_;
};

}  // namespace heddle
