#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/memory.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle {

/// Keys and values of the tokens decoded so far, per attention layer: [B, capacity, G, K]. All
/// layers are at the same length; the decoder advances it after each forward. Ranks of axis cp have
/// caches of different tokens.
class KvCache {
 public:
  struct Shape {
    int layers = 0;
    std::int64_t sequences = 1, capacity = 0, kv_heads = 0, head_dim = 0;
    DType dtype = DType::f32;
  };

  KvCache(const Shape& shape, Memory& memory);

  /// Of the sequence: of all ranks together.
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return shape_.capacity; }

  /// Of the tokens of the next forward the first `tokens` are kept here; otherwise all are.
  void keep_only(std::int64_t tokens) { kept_ = tokens; }
  /// The same, with where these stand in the sequence: ascending, behind all that are here.
  void keep_at(const std::vector<std::int64_t>& places);
  /// How many of the tokens that are here stand before a place: the first ones. All were kept with
  /// their places.
  std::int64_t held_before(std::int64_t place) const;

  /// Writes the new tokens' keys and values [B, S, G, K] behind the earlier ones.
  void store(int layer, const Tensor& k_BSGK, const Tensor& v_BSGK, Stream& stream);
  /// All keys that are here, with those of the `new_tokens` just stored: [B, T, G, K].
  Tensor keys(int layer, std::int64_t new_tokens) const;
  Tensor values(int layer, std::int64_t new_tokens) const;

  void advance(std::int64_t tokens);

 private:
  Shape shape_;
  std::int64_t kept_of(std::int64_t new_tokens) const { return kept_.value_or(new_tokens); }

  std::int64_t length_ = 0, held_ = 0;
  std::optional<std::int64_t> kept_;  // of the forward under way
  std::vector<std::int64_t> places_;  // of tokens that are kept with them
  std::vector<Tensor> keys_, values_;
};

}  // namespace heddle
