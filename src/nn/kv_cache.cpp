#include "nn/kv_cache.h"

#include "base/check.h"
#include "ops/elementwise.h"

namespace heddle {

KvCache::KvCache(const Shape& shape, Memory& memory) : shape_(shape) {
  const heddle::Shape tensor{shape.sequences, shape.capacity, shape.kv_heads, shape.head_dim};
  for (int layer = 0; layer < shape.layers; ++layer) {
    keys_.push_back(memory.alloc(tensor, shape.dtype, MemoryTag::kv_cache));
    values_.push_back(memory.alloc(tensor, shape.dtype, MemoryTag::kv_cache));
  }
}

void KvCache::store(int layer, const Tensor& k_BSGK, const Tensor& v_BSGK, Stream& stream) {
  const auto at = static_cast<std::size_t>(layer);
  const std::int64_t end = length_ + k_BSGK.size(1);
  HEDDLE_CHECK(end <= shape_.capacity, "{} tokens in a cache for {}", end, shape_.capacity);
  ops::copy(k_BSGK, keys_[at].slice(1, length_, end), stream);
  ops::copy(v_BSGK, values_[at].slice(1, length_, end), stream);
}

Tensor KvCache::keys(int layer, std::int64_t new_tokens) const {
  return keys_[static_cast<std::size_t>(layer)].slice(1, 0, length_ + new_tokens);
}

Tensor KvCache::values(int layer, std::int64_t new_tokens) const {
  return values_[static_cast<std::size_t>(layer)].slice(1, 0, length_ + new_tokens);
}

}  // namespace heddle
