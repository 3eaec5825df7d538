#include "codec/cuda/tiles.h"
#include "codec/sign.h"

namespace heddle::codec::cuda {
namespace {

constexpr int kLanes = Sign::kLanes, kMeasureThreads = 128;
constexpr int kTiles = kMeasureThreads / kLanes;  // of a block of threads
constexpr int kScaleThreads = Sign::kTileLanes;
static_assert(Sign::kTile == kUsualTile);

/// Whether each tile of the tensor lies in one piece, so that signs can be stored while magnitudes
/// are added up.
bool has_whole_tiles(const EncodeCall& call) {
  return call.piece == call.values || call.piece % Sign::kTile == 0;
}

/// Where the sign of a value is, the first of eight.
__device__ std::byte* byte_of_signs(const EncodeCall& call, std::int64_t value) {
  const std::int64_t piece = value / call.piece, in_piece = value % call.piece;
  return call.bytes + static_cast<std::size_t>(piece) * call.piece_bytes + sizeof(float) +
         in_piece / 8;
}

/// A tile's values as its 16 lanes see them: 16 each at a time.
template <bool kFeedback>
struct LaneValues {
  float of[kLanes];

  __device__ void load(const EncodeCall& call, std::int64_t first, int at, int values) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const int own = at + i * kLanes;
      of[i] = own < values ? call.x[first + own] : 0.0F;
      if (kFeedback && own < values) of[i] += call.residual[first + own];
    }
  }
};

/// The sum of magnitudes of a tile, by 16 lanes of a warp, in the order that Sign tells; and signs.
template <bool kStoresSigns, bool kFeedback>
__global__ void __launch_bounds__(kMeasureThreads)
    measure_signs(EncodeCall call, std::int64_t tiles) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t tile =
      static_cast<std::int64_t>(blockIdx.x) * kTiles + static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t first = tile * Sign::kTile;
  const auto values = static_cast<int>(min(Sign::kTile, call.values - first));  // 0 or less: none
  const int shift = static_cast<int>(threadIdx.x) % 32 / kLanes * kLanes;
  std::byte* const signs = kStoresSigns && values > 0 ? byte_of_signs(call, first) : nullptr;
  constexpr int kStep = kLanes * kLanes;
  double sum = 0;
  LaneValues<kFeedback> x, next;
  x.load(call, first, lane, values);
#pragma unroll 1
  for (int at = 0; at < kUsualTile; at += kStep) {
    next.load(call, first, at + kStep + lane, values);  // on their way while these are added up
    std::uint32_t own_signs = 0;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const int own = at + i * kLanes + lane;
      sum += static_cast<double>(fabsf(x.of[i]));
      const unsigned all = __ballot_sync(0xffffffffU, own < values && x.of[i] >= 0.0F);
      if (lane == i) own_signs = all >> shift & 0xffffU;
      if (magnitude_bits(x.of[i]) >= kInfinityBits) {
        atomicMax(reinterpret_cast<unsigned long long*>(call.bad),
                  static_cast<unsigned long long>(kBadTop - (first + own)));
      }
    }
    // Lane i has the signs of 16 values, from this one on.
    const int behind = values - (at + lane * kLanes);
    if (kStoresSigns && behind > 0) {
      std::byte* const to = signs + (at + lane * kLanes) / 8;
      if (behind > 8) {
        store_number(static_cast<std::uint16_t>(own_signs), to);
      } else {
        *to = static_cast<std::byte>(own_signs);
      }
    }
    x = next;
  }
#pragma unroll
  for (int width = kLanes / 2; width > 0; width /= 2) {
    sum += __shfl_down_sync(0xffffffffU, sum, width, kLanes);
  }
  if (lane == 0 && tile < tiles) reinterpret_cast<double*>(call.workspace)[tile] = sum;
}

/// By one block of threads: the scale, in front of each piece, and in place of the first tile's
/// sum; not finite where a value is not, and all bytes are zeros then.
__global__ void __launch_bounds__(kScaleThreads)
    find_scale(EncodeCall call, std::int64_t tiles, std::size_t all_bytes) {
  __shared__ double lanes[kScaleThreads];
  auto* const sums = reinterpret_cast<double*>(call.workspace);
  double own = 0;
  for (std::int64_t at = threadIdx.x; at < tiles; at += kScaleThreads) own += sums[at];
  lanes[threadIdx.x] = own;
  for (unsigned width = kScaleThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) lanes[threadIdx.x] += lanes[threadIdx.x + width];
  }
  __syncthreads();
  const double scale = lanes[0] / static_cast<double>(call.values);
  if (threadIdx.x == 0) sums[0] = scale;
  if (!isfinite(scale)) return clear_bytes(call.bytes, all_bytes);
  const std::uint32_t bits = __float_as_uint(static_cast<float>(scale));
  for (std::int64_t piece = threadIdx.x; piece * call.piece < call.values; piece += kScaleThreads) {
    store_number(bits, call.bytes + static_cast<std::size_t>(piece) * call.piece_bytes);
  }
}

/// What the first kernel could not do: residuals, and signs of pieces that cut tiles.
template <bool kStoresSigns>
__global__ void __launch_bounds__(kTileThreads) finish_signs(EncodeCall call, TileSizes sizes) {
  const double mean = *reinterpret_cast<const double*>(call.workspace);
  const Tile tile(sizes);
  if (!isfinite(mean) || tile.values <= 0) return;
  const auto values = static_cast<int>(tile.values);
  const auto scale = static_cast<float>(mean);
  if (kStoresSigns) {
    std::byte* const to = byte_of_signs(call, tile.first);
    for (int at = 8 * static_cast<int>(threadIdx.x); at < values; at += 8 * kTileThreads) {
      unsigned byte = 0;
      for (int i = 0; i < min(8, values - at); ++i) {
        float x = call.x[tile.first + at + i];
        if (call.residual != nullptr) x += call.residual[tile.first + at + i];
        byte |= (x >= 0.0F ? 1U : 0U) << i;
      }
      to[at / 8] = static_cast<std::byte>(byte);
    }
    __syncthreads();
  }
  if (call.residual == nullptr) return;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int at = 4 * (static_cast<int>(threadIdx.x) + j * kTileThreads);
    if (at >= values) continue;
    const Four four = load_sum(call.x, call.residual, tile.first + at, values - at);
    Four decoded;
#pragma unroll
    for (int i = 0; i < 4; ++i) decoded.of[i] = four.of[i] >= 0.0F ? scale : -scale;
    four.minus(decoded).store(call.residual + tile.first + at, values - at);
  }
}

__global__ void __launch_bounds__(kTileThreads) decode_signs(DecodeCall call, TileSizes sizes) {
  const Tile tile(sizes);
  const auto values = static_cast<int>(tile.values);
  const float scale = __uint_as_float(load_number<std::uint32_t>(call.bytes));
  const std::byte* const signs = call.bytes + sizeof(float) + tile.byte;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int at = 4 * (static_cast<int>(threadIdx.x) + j * kTileThreads);
    if (at >= values) continue;
    const unsigned bits = static_cast<unsigned>(signs[at / 8]) >> at % 8;
    Four four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.of[i] = (bits >> i & 1U) != 0 ? scale : -scale;
    put(four, call.y + tile.first + at, values - at, call.adds);
  }
}

TileSizes sign_tiles(std::int64_t values, std::int64_t piece) {
  return {.values = values,
          .tile = Sign::kTile,
          .tile_bytes = static_cast<std::size_t>(Sign::kTile / 8),
          .piece = piece,
          .tiles = (piece + Sign::kTile - 1) / Sign::kTile,
          .piece_bytes = 0};
}

}  // namespace

void encode(const Sign& codec, const EncodeCall& call, Stream& stream) {
  const cudaStream_t on = launch_stream(stream);
  const std::int64_t tiles = (call.values + Sign::kTile - 1) / Sign::kTile;
  const auto measuring = static_cast<unsigned>((tiles + kTiles - 1) / kTiles);
  const bool whole_tiles = has_whole_tiles(call);
  const auto measure =
      call.residual != nullptr
          ? (whole_tiles ? measure_signs<true, true> : measure_signs<false, true>)
          : (whole_tiles ? measure_signs<true, false> : measure_signs<false, false>);
  measure<<<measuring, kMeasureThreads, 0, on>>>(call, tiles);
  HEDDLE_CUDA(cudaGetLastError());
  find_scale<<<1, kScaleThreads, 0, on>>>(call, tiles,
                                          codec.Codec::encoded_bytes(call.values, call.piece));
  HEDDLE_CUDA(cudaGetLastError());
  if (call.residual == nullptr && whole_tiles) return;
  const TileSizes sizes = sign_tiles(call.values, call.piece);
  const auto finish = whole_tiles ? finish_signs<false> : finish_signs<true>;
  finish<<<blocks_of(sizes), kTileThreads, 0, on>>>(call, sizes);
  HEDDLE_CUDA(cudaGetLastError());
}

void decode(const Sign&, const DecodeCall& call, Stream& stream) {
  const TileSizes sizes = sign_tiles(call.values, call.values);
  decode_signs<<<blocks_of(sizes), kTileThreads, 0, launch_stream(stream)>>>(call, sizes);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::codec::cuda
