#pragma once

#include <cstdint>
#include <vector>

#include "tensor/memory.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle {

/// Keys and values of the tokens decoded so far, per attention layer: [B, capacity, G, K], filled
/// to `length`. All layers are at the same length; the decoder advances it after each forward.
class KvCache {
 public:
  struct Shape {
    int layers = 0;
    std::int64_t sequences = 1, capacity = 0, kv_heads = 0, head_dim = 0;
    DType dtype = DType::f32;
  };

  KvCache(const Shape& shape, Memory& memory);

  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return shape_.capacity; }

  /// Writes the new tokens' keys and values [B, S, G, K] behind the `length` earlier ones.
  void store(int layer, const Tensor& k_BSGK, const Tensor& v_BSGK, Stream& stream);
  /// All keys up to and with the `new_tokens` just stored: [B, length + new_tokens, G, K].
  Tensor keys(int layer, std::int64_t new_tokens) const;
  Tensor values(int layer, std::int64_t new_tokens) const;

  void advance(std::int64_t tokens) { length_ += tokens; }
  void clear() { length_ = 0; }

 private:
  Shape shape_;
  std::int64_t length_ = 0;
  std::vector<Tensor> keys_, values_;
};

}  // namespace heddle
