#include "codec/cuda/tiles.h"
#include "codec/top_k.h"

namespace heddle::codec::cuda {
namespace {

constexpr int kThreads = 128, kOwn = kUsualTile / (4 * kThreads);  // groups of four of a thread

struct ChunkSizes {
  int chunk, kept, index_bits;
  std::size_t bytes;  // of a whole chunk
  int tile_chunks;    // a value that is not finite takes so many with it

  __host__ __device__ int kept_of(int values) const {
    return static_cast<int>((static_cast<std::int64_t>(values) * kept + chunk - 1) / chunk);
  }
  __host__ __device__ int index_bytes(int kept_values) const {
    return (kept_values * index_bits + 7) / 8;
  }
  __host__ __device__ int code_bytes(int kept_values) const { return (kept_values + 3) / 4; }
  __host__ __device__ int bytes_of(int values) const {
    const int kept_values = kept_of(values);
    return 4 + index_bytes(kept_values) + code_bytes(kept_values);
  }
};

/// A chunk of a tile, with its residual in it.
class Chunk {
 public:
  __device__ Chunk(const EncodeCall& call, std::int64_t first, int values)
      : x_(call.x + first),
        residual_(call.residual == nullptr ? nullptr : call.residual + first),
        values_(values) {}

  __device__ int values() const { return values_; }
  __device__ float at(int i) const { return residual_ == nullptr ? x_[i] : x_[i] + residual_[i]; }
  /// Four from i on.
  __device__ Four four(int i) const { return load_sum(x_, residual_, i, values_ - i); }

 private:
  const float *x_, *residual_;
  int values_;
};

/// What the threads of a block choose together.
struct Choice {
  static constexpr int kMostCandidates = 512;  ///< where few values are kept
  int counts[2];
  int candidates;
  std::uint32_t magnitudes[kMostCandidates];
  std::uint16_t places[kMostCandidates];  ///< in the chunk
  bool is_chosen[kMostCandidates];
  int found[kThreads / 32];
  float levels[2];  ///< small and large
};

/// The largest threshold (bits of a magnitude) that at least `kept` of what `count` counts reach,
/// or any that just so many reach: found bit by bit, as on the CPU. All threads get it.
/// count(least) is a thread's share.
template <class Count>
__device__ std::uint32_t threshold_of(int kept, Choice& shared, const Count& count) {
  std::uint32_t threshold = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const std::uint32_t tried = threshold | 1U << bit;
    int* const sum = &shared.counts[bit % 2];
    if (threadIdx.x == 0) *sum = 0;
    __syncthreads();
    const auto own = static_cast<unsigned>(count(tried));
    const unsigned of_warp = __reduce_add_sync(0xffffffffU, own);
    if (threadIdx.x % 32 == 0 && of_warp != 0) atomicAdd(sum, static_cast<int>(of_warp));
    __syncthreads();
    const int reached = *sum;
    if (reached == kept) return tried;
    if (reached > kept) threshold = tried;
  }
  return threshold;
}

__device__ std::uint32_t threshold_of_chunk(const Chunk& x, int kept, Choice& shared) {
  return threshold_of(kept, shared, [&](std::uint32_t least) {
    int count = 0;
    for (int i = 4 * static_cast<int>(threadIdx.x); i < x.values(); i += 4 * kThreads) {
      const Four four = x.four(i);
#pragma unroll
      for (int j = 0; j < 4; ++j) count += magnitude_bits(four.of[j]) >= least ? 1 : 0;
    }
    return count;
  });
}

/// The number of threads before this one for which `mine` is true, and of all of them.
__device__ int threads_before(bool mine, Choice& shared, int& all) {
  const unsigned ballot = __ballot_sync(0xffffffffU, mine);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();
  if (lane == 0) shared.found[warp] = __popc(ballot);
  __syncthreads();
  int before = __popc(ballot & ((1U << lane) - 1));
  all = 0;
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) before += shared.found[i];
    all += shared.found[i];
  }
  return before;
}

/// The indices of the `kept` largest, ascending; of equal ones the first.
__device__ void choose(const Chunk& x, int kept, Choice& shared, std::uint16_t* indices) {
  const std::uint32_t threshold = threshold_of_chunk(x, kept, shared);
  int above = 0;
  for (int i = static_cast<int>(threadIdx.x); i < x.values(); i += kThreads) {
    above += magnitude_bits(x.at(i)) > threshold ? 1 : 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) shared.counts[0] = 0;
  __syncthreads();
  atomicAdd(&shared.counts[0], above);
  __syncthreads();
  int at_threshold = kept - shared.counts[0], found = 0;  // equal ones that are still wanted
  for (int first = 0; first < x.values() && found < kept; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const std::uint32_t magnitude = i < x.values() ? magnitude_bits(x.at(i)) : 0;
    const bool is_equal = i < x.values() && magnitude == threshold;
    int equals = 0, chosen = 0;
    const int equals_before = threads_before(is_equal, shared, equals);
    const bool is_chosen =
        i < x.values() && (magnitude > threshold || (is_equal && equals_before < at_threshold));
    const int before = threads_before(is_chosen, shared, chosen);
    if (is_chosen && found + before < kept) indices[found + before] = static_cast<std::uint16_t>(i);
    found += chosen;
    at_threshold -= min(equals, max(at_threshold, 0));
  }
  __syncthreads();
}

/// The indices of the `kept` largest of candidates in any order: those that so few others beat.
__device__ void choose_of_candidates(int kept, Choice& shared, std::uint16_t* indices) {
  const int candidates = shared.candidates;
  for (int own = static_cast<int>(threadIdx.x); own < candidates; own += kThreads) {
    const std::uint32_t magnitude = shared.magnitudes[own];
    const std::uint16_t place = shared.places[own];
    int better = 0;
    for (int i = 0; i < candidates; ++i) {
      const std::uint32_t other = shared.magnitudes[i];
      better += other > magnitude || (other == magnitude && shared.places[i] < place) ? 1 : 0;
    }
    shared.is_chosen[own] = better < kept;
  }
  __syncthreads();
  for (int own = static_cast<int>(threadIdx.x); own < candidates; own += kThreads) {
    if (!shared.is_chosen[own]) continue;
    int before = 0;
    for (int i = 0; i < candidates; ++i) {
      before += shared.is_chosen[i] && shared.places[i] < shared.places[own] ? 1 : 0;
    }
    indices[before] = shared.places[own];
  }
  __syncthreads();
}

/// The same where few values of at most a usual tile are kept: at least `kept` values reach what
/// `kept` of the threads' own largest ones reach, so that only those that do are candidates.
__device__ void choose_few(const Chunk& x, int kept, Choice& shared, std::uint16_t* indices) {
  Four four[kOwn];
  std::uint32_t own_largest = 0;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    four[j] = x.four(4 * (static_cast<int>(threadIdx.x) + j * kThreads));
    own_largest = max(own_largest, four[j].largest_bits());
  }
  std::uint32_t least = 0;
  constexpr int kLastBit = 18;  // 5 of the mantissa are enough to leave few candidates
  for (int bit = 30; bit >= kLastBit; --bit) {
    const std::uint32_t tried = least | 1U << bit;
    if (__syncthreads_count(own_largest >= tried) >= kept) least = tried;
  }
  if (threadIdx.x == 0) shared.candidates = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int place = 4 * (static_cast<int>(threadIdx.x) + j * kThreads) + i;
      const std::uint32_t magnitude = magnitude_bits(four[j].of[i]);
      if (place >= x.values() || magnitude < least) continue;
      const int at = atomicAdd(&shared.candidates, 1);
      if (at >= Choice::kMostCandidates) continue;
      shared.magnitudes[at] = magnitude;
      shared.places[at] = static_cast<std::uint16_t>(place);
    }
  }
  __syncthreads();
  if (shared.candidates > Choice::kMostCandidates) {
    choose(x, kept, shared, indices);
  } else {
    choose_of_candidates(kept, shared, indices);
  }
}

/// The sum of a number from each lane, in pairs half of their number apart.
__device__ double sum_of_lanes(double own) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) own += __shfl_down_sync(0xffffffffU, own, width);
  return __shfl_sync(0xffffffffU, own, 0);
}

/// By one warp, in the order that TopK tells.
__device__ void find_levels(const float* magnitudes, int kept, float* levels) {
  static_assert(TopK::kLanes == 32);
  const int lane = static_cast<int>(threadIdx.x);
  double own = 0;
  for (int i = lane; i < kept; i += 32) own += static_cast<double>(magnitudes[i]);
  const double sum = sum_of_lanes(own);
  double low = sum / static_cast<double>(kept), high = low, middle = low;
  for (int round = 0; round < TopK::kRounds; ++round) {
    double own_high = 0;
    unsigned own_highs = 0;
    for (int i = lane; i < kept; i += 32) {
      const auto magnitude = static_cast<double>(magnitudes[i]);
      if (magnitude <= middle) continue;
      own_high += magnitude;
      ++own_highs;
    }
    const double high_sum = sum_of_lanes(own_high);
    const auto highs = static_cast<int>(__reduce_add_sync(0xffffffffU, own_highs));
    // Two lanes divide at the same time.
    const double mean = lane == 0 ? high_sum / static_cast<double>(max(highs, 1))
                                  : (sum - high_sum) / static_cast<double>(max(kept - highs, 1));
    if (highs > 0) high = __shfl_sync(0xffffffffU, mean, 0);
    if (highs < kept) low = __shfl_sync(0xffffffffU, mean, 1);
    middle = 0.5 * (low + high);
  }
  if (lane != 0) return;
  levels[0] = from_bf16_bits(bf16_bits(static_cast<float>(low > 0.0 ? low : 0.0)));
  levels[1] = from_bf16_bits(bf16_bits(static_cast<float>(high)));
}

/// Values that decode to zero leave all of themselves, those that are kept the rest.
__device__ void put_residual(const EncodeCall& call, const Chunk& x, std::int64_t first,
                             const std::uint16_t* indices, int kept, const Choice& shared) {
  __syncthreads();
  for (int i = 4 * static_cast<int>(threadIdx.x); i < x.values(); i += 4 * kThreads) {
    x.four(i).store(call.residual + first + i, x.values() - i);
  }
  __syncthreads();
  const float middle = 0.5F * shared.levels[0] + 0.5F * shared.levels[1];
  for (int i = static_cast<int>(threadIdx.x); i < kept; i += kThreads) {
    const float sum = call.residual[first + indices[i]];
    const float level = shared.levels[fabsf(sum) > middle ? 1 : 0];
    call.residual[first + indices[i]] = sum - (signbit(sum) ? -level : level);
  }
}

/// The tile of several chunks that the chunk of this block is in.
__device__ std::int64_t tile_of(const TileSizes& all, const ChunkSizes& chunks) {
  const std::int64_t piece = blockIdx.x / all.tiles, in_piece = blockIdx.x % all.tiles;
  const std::int64_t tiles = (all.tiles + chunks.tile_chunks - 1) / chunks.tile_chunks;
  return piece * tiles + in_piece / chunks.tile_chunks;
}

__global__ void __launch_bounds__(kThreads)
    find_bad_tiles(EncodeCall call, TileSizes sizes, int* bad_tiles) {
  const bool any = has_bad(call, Tile(sizes));
  if (threadIdx.x == 0) bad_tiles[blockIdx.x] = any ? 1 : 0;
}

/// A block of threads per chunk; which tiles have values that are not finite is in `bad_tiles`,
/// where they have several chunks. Room in shared memory for the kept values: their magnitudes,
/// then indices.
template <bool kFew>
__global__ void __launch_bounds__(kThreads)
    encode_top_k(EncodeCall call, TileSizes sizes, ChunkSizes chunks, const int* bad_tiles) {
  extern __shared__ float room[];
  __shared__ Choice shared;
  const Tile chunk(sizes);
  if (chunk.values <= 0) return;
  const auto values = static_cast<int>(chunk.values);
  std::byte* const to = call.bytes + chunk.byte;
  if (bad_tiles == nullptr ? has_bad(call, chunk) : bad_tiles[tile_of(sizes, chunks)] != 0) {
    return clear_bytes(to, static_cast<std::size_t>(chunks.bytes_of(values)));
  }
  const int kept = chunks.kept_of(values);
  float* const magnitudes = room;
  auto* const indices = reinterpret_cast<std::uint16_t*>(room + chunks.kept);
  const Chunk x(call, chunk.first, values);
  kFew ? choose_few(x, kept, shared, indices) : choose(x, kept, shared, indices);
  for (int i = static_cast<int>(threadIdx.x); i < kept; i += kThreads) {
    magnitudes[i] = fabsf(x.at(indices[i]));
  }
  __syncthreads();
  if (threadIdx.x < 32) find_levels(magnitudes, kept, shared.levels);
  __syncthreads();
  if (threadIdx.x < 2) {
    store_number(bf16_bits(shared.levels[threadIdx.x]), to + 2 * threadIdx.x);
  }
  std::byte* const index_at = to + 4;
  for (int byte = static_cast<int>(threadIdx.x); byte < chunks.index_bytes(kept);
       byte += kThreads) {
    unsigned bits = 0;
    for (int bit = 0; bit < 8; ++bit) {
      const int at = 8 * byte + bit, i = at / chunks.index_bits;
      if (i < kept) bits |= (indices[i] >> at % chunks.index_bits & 1U) << bit;
    }
    index_at[byte] = static_cast<std::byte>(bits);
  }
  const float middle = 0.5F * shared.levels[0] + 0.5F * shared.levels[1];
  std::byte* const code_at = index_at + chunks.index_bytes(kept);
  for (int byte = static_cast<int>(threadIdx.x); byte < chunks.code_bytes(kept); byte += kThreads) {
    unsigned bits = 0;
    for (int i = 4 * byte; i < min(4 * byte + 4, kept); ++i) {
      const unsigned code =
          (magnitudes[i] > middle ? 1U : 0U) | (signbit(x.at(indices[i])) ? 2U : 0U);
      bits |= code << (i % 4 * 2);
    }
    code_at[byte] = static_cast<std::byte>(bits);
  }
  if (call.residual != nullptr) put_residual(call, x, chunk.first, indices, kept, shared);
}

/// A kept value, and where it lies in its chunk.
struct Kept {
  int at;
  float value;
};

/// Number i of a chunk's bytes, of `kept` values.
__device__ Kept load_kept(const std::byte* from, const ChunkSizes& chunks, int kept, int i) {
  // An index has 16 bits at most, so it lies in three bytes; the chunk's codes come behind.
  const int bit = i * chunks.index_bits;
  const std::byte* const at = from + 4 + bit / 8;
  const unsigned bytes =
      static_cast<unsigned>(at[0]) | static_cast<unsigned>(at[1]) << 8 |
      (bit % 8 + chunks.index_bits > 16 ? static_cast<unsigned>(at[2]) << 16 : 0);
  const auto byte = static_cast<unsigned>(from[4 + chunks.index_bytes(kept) + i / 4]);
  const unsigned code = byte >> (i % 4 * 2);
  const float level = from_bf16_bits(load_number<std::uint16_t>(from + (code & 1U) * 2));
  return {.at = static_cast<int>(bytes >> bit % 8 & ((1U << chunks.index_bits) - 1)),
          .value = (code & 2U) != 0 ? -level : level};
}

__global__ void __launch_bounds__(kThreads)
    decode_top_k(DecodeCall call, TileSizes sizes, ChunkSizes chunks) {
  const Tile chunk(sizes);
  const auto values = static_cast<int>(chunk.values);
  const int kept = chunks.kept_of(values), own = static_cast<int>(threadIdx.x);
  const std::byte* const from = call.bytes + chunk.byte;
  float* const y = call.y + chunk.first;
  // Damaged indices that lie behind the chunk are left out.
  const auto put_kept = [&](const Kept& one) {
    if (one.at < values) y[one.at] = call.adds ? y[one.at] + one.value : one.value;
  };
  // The first is on its way while zeros are written; most chunks have no more for a thread.
  Kept first = {.at = values, .value = 0.0F};
  if (own < kept) first = load_kept(from, chunks, kept, own);
  for (int at = 4 * own; at < values; at += 4 * kThreads) put({}, y + at, values - at, call.adds);
  __syncthreads();
  put_kept(first);
  for (int i = own + kThreads; i < kept; i += kThreads) {
    put_kept(load_kept(from, chunks, kept, i));
  }
}

ChunkSizes chunk_sizes(const TopK& codec) {
  const auto chunk = static_cast<int>(codec.block());
  return {.chunk = chunk,
          .kept = static_cast<int>(codec.kept_of(chunk)),
          .index_bits = codec.index_bits(),
          .bytes = codec.block_bytes(chunk),
          .tile_chunks = std::max(1, kUsualTile / chunk)};
}

/// A tile for each chunk.
TileSizes one_by_one(TileSizes sizes, const ChunkSizes& chunks) {
  sizes.tile = chunks.chunk;
  sizes.tile_bytes = chunks.bytes;
  sizes.tiles = (sizes.piece + sizes.tile - 1) / sizes.tile;
  return sizes;
}

}  // namespace

void encode(const TopK& codec, const EncodeCall& call, Stream& stream) {
  ops::cuda::StreamState& state = ops::cuda::state_of(stream);
  const TileSizes sizes = tile_sizes(codec, call);
  const ChunkSizes chunks = chunk_sizes(codec);
  int* bad_tiles = nullptr;
  if (chunks.tile_chunks > 1) {
    bad_tiles = static_cast<int*>(state.workspace.at_least(blocks_of(sizes) * sizeof(int)));
    find_bad_tiles<<<blocks_of(sizes), kThreads, 0, state.stream>>>(call, sizes, bad_tiles);
    HEDDLE_CUDA(cudaGetLastError());
  }
  const TileSizes all = one_by_one(sizes, chunks);
  const bool few = chunks.chunk <= kUsualTile && chunks.kept <= kThreads / 2;
  const auto kernel = few ? encode_top_k<true> : encode_top_k<false>;
  const auto room = static_cast<unsigned>(chunks.kept) * 6;
  kernel<<<blocks_of(all), kThreads, room, state.stream>>>(call, all, chunks, bad_tiles);
  HEDDLE_CUDA(cudaGetLastError());
}

void decode(const TopK& codec, const DecodeCall& call, Stream& stream) {
  const ChunkSizes chunks = chunk_sizes(codec);
  const TileSizes sizes = one_by_one(tile_sizes(codec, call), chunks);
  decode_top_k<<<blocks_of(sizes), kThreads, 0, launch_stream(stream)>>>(call, sizes, chunks);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::codec::cuda
