#include "model/spec.h"

#include <algorithm>

namespace heddle {

std::int64_t ModelSpec::longest_sequence() const {
  return std::min(max_positions, window.value_or(max_positions));
}

std::int64_t ModelSpec::matmul_parameter_count() const {
  const std::int64_t attention =
      hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden;
  const std::int64_t feed_forward = (mlp == Mlp::swiglu ? 3 : 2) * hidden * ffn;
  return layers * (attention + feed_forward) + vocab * hidden;
}

std::int64_t ModelSpec::parameter_count() const {
  const std::int64_t norm_size = norm == Norm::layer ? 2 * hidden : hidden;
  std::int64_t per_layer = 2 * norm_size;
  if (qkv_bias) per_layer += (heads + 2 * kv_heads) * head_dim;
  if (attention_out_bias) per_layer += hidden;
  if (mlp_bias) per_layer += (mlp == Mlp::swiglu ? 2 : 1) * ffn + hidden;
  if (qk_norm) per_layer += 2 * head_dim;
  std::int64_t count = matmul_parameter_count() + layers * per_layer + norm_size;
  if (!tied_embeddings) count += vocab * hidden;
  if (!rope) count += max_positions * hidden;
  return count;
}

double training_flops_per_token(const ModelSpec& spec, std::int64_t seq_len) {
  const double attention = 6.0 * static_cast<double>(spec.layers) * static_cast<double>(seq_len) *
                           static_cast<double>(spec.heads * spec.head_dim);
  return 6.0 * static_cast<double>(spec.matmul_parameter_count()) + attention;
}

}  // namespace heddle
