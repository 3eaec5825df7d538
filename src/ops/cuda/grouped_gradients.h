#pragma once

// Device code of Hopper: the gradients of experts' gate and up from the gradient of the down
// product's input (grouped_product.h). Beside the products' own copies reading takes longer than a
// row does: gate and up of two rows are on their way to shared memory at a time, from the
// second-level cache, to which more were brought.

#include "ops/cuda/expert_gradients.h"
#include "ops/cuda/grouped_results.h"

namespace heddle::ops::cuda::hopper::grouped {

class WriteGradients {
 public:
  static constexpr int kLines = 16;
  static constexpr int kRingBytes = kGroups * 4 * 2 * 1024;  ///< in shared memory: two rows a warp

  __device__ WriteGradients(const GroupedProduct& p, unsigned char* ring)
      : p_(p.gated),
        weighed_(p.weighed),
        ring_(ring + (warp_id() - 4) * 2048 + lane_id() * 16),
        columns_((p.width + 255) / 256) {}

  __device__ __forceinline__ bool begin(const Place& place, int row, int rows) {
    const int column = place.column + 8 * lane_id();
    is_inside_ = column < p_.width;
    left_ = is_inside_ ? rows : 0;
    dots_ = weighed_.dots + static_cast<std::int64_t>(row) * columns_ + place.column / 256;
    at_ = row * p_.stride + column;
    y_at_ = row * p_.y_stride + column;
    copy_row(0, 0);
    copy_row(1, 1);
    for (int i = 2; i < kFetched; ++i) fetch_row(i);
    weight_ = lane_id() < rows ? weighed_.weights[row + lane_id()] : 0.0F;
    return place.column < p_.width;
  }

  __device__ __forceinline__ void next_line(std::uint32_t result, int first, int line) {
    wait_for_copies<1>();
    const unsigned char* const slot = ring_ + line % 2 * 1024;
    uint4 gate = *reinterpret_cast<const uint4*>(slot),
          up = *reinterpret_cast<const uint4*>(slot + 512);
    const uint4 dy = load_result(result, first + line, lane_id());
    const float weight = __shfl_sync(0xffffffffU, weight_, line);
    float dot = 0.0F;
    const uint4 y{differentiate(dy.x, gate.x, up.x, weight, dot),
                  differentiate(dy.y, gate.y, up.y, weight, dot),
                  differentiate(dy.z, gate.z, up.z, weight, dot),
                  differentiate(dy.w, gate.w, up.w, weight, dot)};
    copy_row(2, line % 2);
    fetch_row(kFetched);
    if (!is_inside_) dot = 0.0F;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      dot += __shfl_xor_sync(0xffffffffU, dot, distance);
    }
    if (lane_id() == 0) *dots_ = dot;
    if (is_inside_) {
      gated::vector_at(p_.dgate + at_) = gate;
      gated::vector_at(p_.dup + at_) = up;
      gated::vector_at(p_.y + y_at_) = y;
    }
    --left_;
    dots_ += columns_;
    at_ += p_.stride;
    y_at_ += p_.y_stride;
  }

 private:
  static constexpr int kFetched = 8;

  /// Starts to copy gate and up of the row so many behind the next one, where there is one, to a
  /// slot of the ring; in any case there is a group of copies.
  __device__ __forceinline__ void copy_row(int rows, int slot) {
    if (rows < left_) {
      unsigned char* const to = ring_ + slot * 1024;
      start_copy<16>(to, p_.gate + at_ + rows * p_.stride, true);
      start_copy<16>(to + 512, p_.up + at_ + rows * p_.stride, true);
    }
    end_copy_group();
  }
  /// Brings such a row into the second-level cache, a lane for each line.
  __device__ __forceinline__ void fetch_row(int rows) {
    if (rows >= left_ || lane_id() % 8 != 0) return;
    fetch(p_.gate + at_ + rows * p_.stride);
    fetch(p_.up + at_ + rows * p_.stride);
  }

  /// Replaces two of gate and up by their gradients; returns y and adds to the row's dot.
  __device__ static __forceinline__ std::uint32_t differentiate(std::uint32_t dy,
                                                                std::uint32_t& gate,
                                                                std::uint32_t& up, float weight,
                                                                float& dot) {
    const ExpertGradients a = expert_gradients(low_of(dy), low_of(gate), low_of(up), weight, dot);
    const ExpertGradients b =
        expert_gradients(high_of(dy), high_of(gate), high_of(up), weight, dot);
    gate = pair_of(a.gate, b.gate);
    up = pair_of(a.up, b.up);
    return pair_of(a.y, b.y);
  }

  const GatedProduct& p_;
  const WeighedRows& weighed_;
  unsigned char* const ring_;
  const int columns_;
  bool is_inside_ = false;
  int left_ = 0;         ///< rows from the next one on that this lane has some of
  float weight_ = 0.0F;  ///< lane i has row i's
  float* dots_ = nullptr;
  std::int64_t at_ = 0, y_at_ = 0;
};

}  // namespace heddle::ops::cuda::hopper::grouped
