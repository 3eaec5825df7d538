#pragma once

#include <memory>

#include "model/decoder.h"
#include "model/spec.h"
#include "nn/kv_cache.h"
#include "parallel/param_store.h"

namespace heddle {

/// A model in memory: its layers and its parameters.
class Model {
 public:
  Model(ModelSpec spec, const BuildOptions& options, ParamStore::Purpose purpose, Memory& memory);

  const ModelSpec& spec() const { return spec_; }
  ParamStore& store() { return *store_; }
  const ParamStore& store() const { return *store_; }
  const std::vector<std::unique_ptr<Layer>>& units() const { return decoder_.units; }
  DType dtype() const { return dtype_; }

  /// Loss of every token of the batch, [T] f64; nothing is kept for backward.
  Tensor losses(const MicroBatch& batch, Stream& stream, Memory& memory) const;
  /// Logits [rows, V]: of all tokens, or with `last_only` of each sequence's last. With a cache the
  /// batch continues what the cache holds, which is then advanced.
  Tensor logits(const MicroBatch& batch, bool last_only, KvCache* cache, Stream& stream,
                Memory& memory) const;

  KvCache::Shape cache_shape(std::int64_t sequences, std::int64_t capacity) const;
  Cost cost(const CostShape& shape) const;

 private:
  /// The activations in front of the head.
  Tensor trunk(Ctx& ctx) const;

  ModelSpec spec_;
  DType dtype_;
  Decoder decoder_;
  std::unique_ptr<ParamStore> store_;
};

/// A batch over the caller's ids and targets ([B, S] i32; targets may be absent), positions
/// counting from `first_position` in every sequence, one document each.
MicroBatch plain_batch(const Tensor& ids_BS, const Tensor& targets_BS, std::int64_t first_position,
                       Memory& memory);

}  // namespace heddle
