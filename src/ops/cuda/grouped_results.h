#pragma once

// Device code of Hopper: what becomes of the results of experts' products (grouped_product.h). A
// warpgroup rounds its sums to shared memory and finishes them while it multiplies the next tile:
// products run by themselves, and their eight warps have little else to do. A warp takes its own 16
// rows, which no other one writes, line by line: 32 vectors of eight columns, a row of 256 or, of
// gate and up, two of 128.

#include "ops/cuda/grouped_tiles.h"

namespace heddle::ops::cuda::hopper::grouped {

/// Of Finish, begin(place, row, rows) says whether a warp's part of a tile is inside of c;
/// next_line(result, first, line) does the next line, of rows from `first` on in shared memory.
template <class Finish>
class Results {
 public:
  __device__ Results(const Finish& finish, unsigned char* result, int group, int thread)
      : finish_(finish),
        result_(shared_address(result)),
        thread_(thread),
        own_(64 * group + thread / 32 * 16) {}

  /// The steps of the tile that is multiplied next, over which all lines are spread.
  __device__ __forceinline__ void expect(int steps) {
    steps_ = steps;
    credit_ = 0;
  }
  __device__ void prepare(int /*step*/, unsigned char* /*stage*/) const {}
  __device__ __forceinline__ void meanwhile(int /*step*/) {
    for (credit_ += Finish::kLines; credit_ >= steps_; credit_ -= steps_) {
      if (done_ < lines_) finish_line();
    }
  }
  /// The lines of the last tile.
  __device__ __forceinline__ void finish() {
    while (done_ < lines_) finish_line();
  }

  /// A tile's sums; all lines of the one before are done by then.
  __device__ __forceinline__ void take(const float (&sums)[128], const Place& place) {
    constexpr int kRowsOfLine = 16 / Finish::kLines;
    const int row = place.row + own_, rows = max(0, min(16, place.end - row));
    lines_ = finish_.begin(place, row, rows) ? (rows + kRowsOfLine - 1) / kRowsOfLine : 0;
    done_ = 0;
    round_sums(sums, result_, thread_);
    __syncwarp();
  }

 private:
  __device__ __forceinline__ void finish_line() {
    finish_.next_line(result_, thread_ / 32 * 16, done_);
    ++done_;
  }

  Finish finish_;
  const std::uint32_t result_;
  const int thread_, own_;
  int steps_ = 1, credit_ = 0, lines_ = 0, done_ = 0;
};

/// Writes rows to c.
class WriteRows {
 public:
  static constexpr int kLines = 16;

  __device__ explicit WriteRows(const GroupedProduct& p) : p_(p) {}

  /// Whether there is anything to do.
  __device__ __forceinline__ bool begin(const Place& place, int row, int /*rows*/) {
    const int column = place.column + 8 * lane_id();
    is_inside_ = column < p_.width;
    at_ = p_.c + row * p_.stride + column;
    return place.column < p_.width;
  }
  __device__ __forceinline__ void next_line(std::uint32_t result, int first, int line) {
    const uint4 x = load_result(result, first + line, lane_id());
    if (is_inside_) gated::vector_at(at_) = x;
    at_ += p_.stride;
  }

 private:
  const GroupedProduct& p_;
  __nv_bfloat16* at_ = nullptr;
  bool is_inside_ = false;
};

/// Writes gate, up, and silu(gate) * up.
class WriteGated {
 public:
  static constexpr int kLines = 8;

  __device__ explicit WriteGated(const GroupedProduct& p) : p_(p.gated) {}

  __device__ __forceinline__ bool begin(const Place& place, int row, int rows) {
    const int column = place.column + 8 * (lane_id() % 16), own = row + lane_id() / 16;
    left_ = column < p_.width ? rows - lane_id() / 16 : 0;
    at_ = own * p_.stride + column;
    y_at_ = own * p_.y_stride + column;
    return place.column < p_.width;
  }
  __device__ __forceinline__ void next_line(std::uint32_t result, int first, int line) {
    const int r = first + 2 * line + lane_id() / 16, v = lane_id() % 16;
    const uint4 g = load_result(result, r, v), u = load_result(result, r, v + 16);
    const uint4 y{gated::swiglu(g.x, u.x), gated::swiglu(g.y, u.y), gated::swiglu(g.z, u.z),
                  gated::swiglu(g.w, u.w)};
    if (left_ > 0) {
      gated::vector_at(p_.gate + at_) = g;
      gated::vector_at(p_.up + at_) = u;
      gated::vector_at(p_.y + y_at_) = y;
    }
    left_ -= 2;
    at_ += 2 * p_.stride;
    y_at_ += 2 * p_.y_stride;
  }

 private:
  const GatedProduct& p_;
  std::int64_t at_ = 0, y_at_ = 0;
  int left_ = 0;  ///< rows from this lane's next one on
};

}  // namespace heddle::ops::cuda::hopper::grouped
