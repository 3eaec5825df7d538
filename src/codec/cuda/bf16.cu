#include "codec/bf16.h"
#include "codec/cuda/tiles.h"

namespace heddle::codec::cuda {
namespace {

__global__ void __launch_bounds__(kTileThreads) encode_bf16(EncodeCall call, TileSizes sizes) {
  const Tile tile(sizes);
  if (tile.values <= 0) return;
  Four four[kGroups];
  bool is_finite = true;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int at = 4 * (static_cast<int>(threadIdx.x) + j * kTileThreads);
    four[j] = load_sum(call.x, call.residual, tile.first + at, tile.values - at);
    is_finite = is_finite && four[j].is_finite();
    if (!four[j].is_finite()) note_bad(call.bad, four[j], tile.first + at);
  }
  std::byte* const to = call.bytes + tile.byte;
  if (__syncthreads_or(!is_finite)) {
    return clear_bytes(to, 2 * static_cast<std::size_t>(tile.values));
  }
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int at = 4 * (static_cast<int>(threadIdx.x) + j * kTileThreads);
    const std::int64_t count = tile.values - at;
    std::uint16_t codes[4];
    Four decoded;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i] = bf16_bits(four[j].of[i]);
      decoded.of[i] = from_bf16_bits(codes[i]);
    }
    if (count >= 4 && is_aligned(to + 2 * at, 8)) {
      *reinterpret_cast<uint2*>(to + 2 * at) = {codes[0] | std::uint32_t{codes[1]} << 16,
                                                codes[2] | std::uint32_t{codes[3]} << 16};
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) store_number(codes[i], to + 2 * (at + i));
      }
    }
    if (call.residual != nullptr) {
      four[j].minus(decoded).store(call.residual + tile.first + at, count);
    }
  }
}

__global__ void __launch_bounds__(kTileThreads) decode_bf16(DecodeCall call, TileSizes sizes) {
  const Tile tile(sizes);
  const std::byte* const from = call.bytes + tile.byte;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int at = 4 * (static_cast<int>(threadIdx.x) + j * kTileThreads);
    const std::int64_t count = tile.values - at;
    Four four = {};
    if (count >= 4 && is_aligned(from + 2 * at, 8)) {
      const uint2 codes = *reinterpret_cast<const uint2*>(from + 2 * at);
      four = {__uint_as_float(codes.x << 16), __uint_as_float(codes.x & 0xffff0000U),
              __uint_as_float(codes.y << 16), __uint_as_float(codes.y & 0xffff0000U)};
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) four.of[i] = from_bf16_bits(load_number<std::uint16_t>(from + 2 * (at + i)));
      }
    }
    put(four, call.y + tile.first + at, count, call.adds);
  }
}

}  // namespace

void encode(const Bf16& codec, const EncodeCall& call, Stream& stream) {
  const TileSizes sizes = tile_sizes(codec, call);
  encode_bf16<<<blocks_of(sizes), kTileThreads, 0, launch_stream(stream)>>>(call, sizes);
  HEDDLE_CUDA(cudaGetLastError());
}

void decode(const Bf16& codec, const DecodeCall& call, Stream& stream) {
  const TileSizes sizes = tile_sizes(codec, call);
  decode_bf16<<<blocks_of(sizes), kTileThreads, 0, launch_stream(stream)>>>(call, sizes);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::codec::cuda
