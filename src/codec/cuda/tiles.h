#pragma once

// Device code only. As on the CPU, tensors are worked through in tiles of about 4096 values, here
// by a block of threads each: a value that is not finite takes its tile with it.

#include "codec/kernels.h"
#include "codec/value_codes.h"
#include "ops/cuda/stream_state.h"
#include "tensor/cuda/check.h"

namespace heddle::codec::cuda {

constexpr int kTileThreads = 512, kUsualTile = 4096;
constexpr int kGroups = kUsualTile / (4 * kTileThreads);  ///< of four values, for each thread

/// How values and bytes are cut into tiles.
struct TileSizes {
  std::int64_t values, tile;
  std::size_t tile_bytes;
  std::int64_t piece, tiles;  ///< tiles of a piece
  std::size_t piece_bytes;
};

/// Where the tile of this block of threads lies.
struct Tile {
  std::int64_t first;   ///< value of the tensor
  std::size_t byte;     ///< of all bytes
  std::int64_t values;  ///< 0 or less: there is none

  __device__ explicit Tile(const TileSizes& all) {
    const std::int64_t at = blockIdx.x;
    const std::int64_t number = at < all.tiles ? 0 : at / all.tiles;  // most have one piece
    const std::int64_t in_piece = at - number * all.tiles;
    first = number * all.piece + in_piece * all.tile;
    byte = static_cast<std::size_t>(number) * all.piece_bytes +
           static_cast<std::size_t>(in_piece) * all.tile_bytes;
    values = min(min(all.tile, all.piece - in_piece * all.tile), all.values - first);
  }
};

/// Codecs that have blocks.
template <class Name>
TileSizes tile_sizes(const Name& codec, std::int64_t values, std::int64_t piece,
                     std::size_t piece_bytes) {
  const std::int64_t block = codec.block();
  const std::int64_t tile = block * std::max<std::int64_t>(1, kUsualTile / block);
  return {.values = values,
          .tile = tile,
          .tile_bytes = codec.encoded_bytes(tile),
          .piece = piece,
          .tiles = (piece + tile - 1) / tile,
          .piece_bytes = piece_bytes};
}
template <class Name>
TileSizes tile_sizes(const Name& codec, const EncodeCall& call) {
  return tile_sizes(codec, call.values, call.piece, call.piece_bytes);
}
template <class Name>
TileSizes tile_sizes(const Name& codec, const DecodeCall& call) {
  return tile_sizes(codec, call.values, call.values, 0);
}

inline unsigned blocks_of(const TileSizes& sizes) {
  return static_cast<unsigned>((sizes.values + sizes.piece - 1) / sizes.piece * sizes.tiles);
}

/// The stream that a codec's kernels run on; its device becomes the thread's current one.
inline cudaStream_t launch_stream(Stream& stream) { return ops::cuda::state_of(stream).stream; }

__device__ inline bool is_aligned(const void* at, unsigned bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

/// Up to four values that follow each other; 0 behind the end.
struct Four {
  float of[4];

  /// Of aligned ones all four.
  __device__ static Four load_whole(const float* from) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    return {four.x, four.y, four.z, four.w};
  }
  __device__ void store_whole(float* to) const {
    *reinterpret_cast<float4*>(to) = {of[0], of[1], of[2], of[3]};
  }
  __device__ static Four load(const float* from, std::int64_t count) {
    if (count >= 4 && is_aligned(from, 16)) return load_whole(from);
    Four result;
#pragma unroll
    for (int i = 0; i < 4; ++i) result.of[i] = i < count ? from[i] : 0.0F;
    return result;
  }
  __device__ void store(float* to, std::int64_t count) const {
    if (count >= 4 && is_aligned(to, 16)) return store_whole(to);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) to[i] = of[i];
    }
  }
  __device__ void add(const Four& other) {
#pragma unroll
    for (int i = 0; i < 4; ++i) of[i] += other.of[i];
  }
  __device__ Four minus(const Four& other) const {
    Four result;
#pragma unroll
    for (int i = 0; i < 4; ++i) result.of[i] = of[i] - other.of[i];
    return result;
  }
  __device__ std::uint32_t largest_bits() const {
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) most = max(most, magnitude_bits(of[i]));
    return most;
  }
  __device__ bool is_finite() const { return largest_bits() < kInfinityBits; }
};

/// Four values from `at` on, with their residuals where there are any.
__device__ inline Four load_sum(const float* x, const float* residual, std::int64_t at,
                                std::int64_t count) {
  Four four = Four::load(x + at, count);
  if (residual != nullptr && count > 0) four.add(Four::load(residual + at, count));
  return four;
}

/// Stores or adds what was decoded.
__device__ inline void put(Four four, float* y, std::int64_t count, bool adds) {
  if (count <= 0) return;
  if (adds) {
    Four sum = Four::load(y, count);
    sum.add(four);
    four = sum;
  }
  four.store(y, count);
}

/// Notes the first of up to four values that is not finite; `at` is the index of the first.
__device__ inline void note_bad(std::int64_t* bad, const Four& four, std::int64_t at) {
  for (int i = 0; i < 4; ++i) {
    if (magnitude_bits(four.of[i]) < kInfinityBits) continue;
    atomicMax(reinterpret_cast<unsigned long long*>(bad),
              static_cast<unsigned long long>(kBadTop - (at + i)));
    return;
  }
}

/// Whether a value of the tile is not finite; it is noted. By all threads of the block, which have
/// the answer.
__device__ inline bool has_bad(const EncodeCall& call, const Tile& tile) {
  bool is_finite = true;
  for (std::int64_t at = 4 * threadIdx.x; at < tile.values; at += 4 * blockDim.x) {
    const Four four = load_sum(call.x, call.residual, tile.first + at, tile.values - at);
    if (four.is_finite()) continue;
    is_finite = false;
    note_bad(call.bad, four, tile.first + at);
  }
  return __syncthreads_or(!is_finite) != 0;
}

/// By all threads of the block.
__device__ inline void clear_bytes(std::byte* to, std::size_t bytes) {
  for (std::size_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = std::byte{0};
}

// Numbers inside encoded bytes, which are aligned to nothing.

template <class T>
__device__ void store_number(T value, std::byte* to) {
  if (is_aligned(to, sizeof(T))) {
    *reinterpret_cast<T*>(to) = value;
  } else if (sizeof(T) == 4 && is_aligned(to, 2)) {
    reinterpret_cast<std::uint16_t*>(to)[0] = static_cast<std::uint16_t>(value);
    reinterpret_cast<std::uint16_t*>(to)[1] =
        static_cast<std::uint16_t>(static_cast<std::uint64_t>(value) >> 16);
  } else {
#pragma unroll
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      to[i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
    }
  }
}

template <class T>
__device__ T load_number(const std::byte* from) {
  if (is_aligned(from, sizeof(T))) return *reinterpret_cast<const T*>(from);
  if (sizeof(T) == 4 && is_aligned(from, 2)) {
    const auto* const halves = reinterpret_cast<const std::uint16_t*>(from);
    return static_cast<T>(halves[0] | static_cast<std::uint32_t>(halves[1]) << 16);
  }
  std::uint64_t value = 0;
#pragma unroll
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  }
  return static_cast<T>(value);
}

}  // namespace heddle::codec::cuda
