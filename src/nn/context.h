#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tensor/memory.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle {

class DecodedRows;
class IdleNetwork;
class KvCache;
struct RankContext;

/// Where the tokens of a share stand among those of the micro-batch that ranks share.
struct TokenPlaces {
  std::vector<std::int64_t> of_whole;       ///< by token of the share
  std::int64_t sequences = 1, seq_len = 1;  ///< of the whole
};

/// One schedule item: B sequences of S tokens, or this rank's share of their tokens as one
/// sequence. All tensors are i32, [B, S], contiguous.
struct MicroBatch {
  Tensor ids;
  Tensor targets;    ///< the next token, or ops::kIgnoreTarget; absent when there is no loss
  Tensor positions;  ///< position in the token's document
  Tensor
      first_key;  ///< index in the sequence where the token's document starts; absent: one document
  /// Of a share: what the rank does in attention (parallel/sequence). Absent: sequences are whole.
  std::shared_ptr<const RankContext> context = nullptr;
  std::shared_ptr<const TokenPlaces> places = nullptr;  ///< of a share
  std::int64_t number = 0;  ///< among the micro-batches of a step, those of all replicas

  std::int64_t sequences() const { return ids.size(0); }
  std::int64_t seq_len() const { return ids.size(1); }
  std::int64_t tokens() const { return ids.count(); }
};

/// Which experts tokens take in a layer, from where they are routed.
struct Choices {
  std::int64_t layer = 0;                  ///< among those with experts
  std::span<const std::uint64_t> numbers;  ///< of the tokens, among those of the step
  Tensor experts_TK;                       ///< i32 in host memory; below 0: none
  bool are_counted = true;  ///< false where other ranks of tp route the same tokens too, and count
};
using OnChoices = std::function<void(const Choices&)>;

/// What forward remembers for backward.
enum class Keep {
  nothing,  ///< there will be no backward
  dear,     ///< what is dear to compute again; the rest is computed again before backward
  all
};

/// What a layer may use while it runs. Holds references only; made anew for each action.
struct Ctx {
  Stream& stream;
  Memory& memory;
  const MicroBatch& batch;
  Keep keep = Keep::all;
  double loss_scale = 1.0;      ///< gradients are of loss_scale times the summed loss
  double router_scale = 1.0;    ///< and of router_scale times what routers add for every token
  KvCache* kv_cache = nullptr;  ///< decoding: keys and values of earlier tokens
  DecodedRows* rows = nullptr;  ///< decoding sequences of different lengths: in its place
  /// Of the optimizer, for what is drawn at random; 0: this is no training.
  std::int64_t step = 0;
  std::int64_t first_row = 0;  ///< of what a layer gets, among the batch's tokens
  // f64, a row for each layer with experts (ops::add_load):
  Tensor expert_load = {};  ///< of the step: to be added to; absent: nobody counts
  Tensor last_load = {};    ///< of all ranks in the step before; absent: there was none
  const OnChoices* on_choices = nullptr;  ///< absent: nobody wants to know
  IdleNetwork* idle = nullptr;            ///< backward: what waits for experts to leave it idle

  bool keeps_all() const { return keep == Keep::all; }
  bool keeps_dear() const { return keep != Keep::nothing; }

  Tensor activation(const Shape& shape, DType dtype) {
    return memory.alloc(shape, dtype, MemoryTag::activations);
  }
  Tensor workspace(const Shape& shape, DType dtype) {
    return memory.alloc(shape, dtype, MemoryTag::workspace);
  }
};

}  // namespace heddle
