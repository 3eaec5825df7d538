#include "codec/cuda/tiles.h"
#include "codec/lossless.h"

namespace heddle::codec::cuda {
namespace {

constexpr int kBlock = Lossless::kBlock;  // values of a block, 4 for each thread
constexpr int kThreads = kBlock / 4;
constexpr int kTileBlocks = kUsualTile / kBlock;  // of a block of threads
constexpr int kHeader = static_cast<int>(Lossless::kHeaderBytes);
constexpr int kWidths = 7;  // bits of an exponent's distance
constexpr unsigned kAll = 0xffffffffU;

// A float32 taken apart as Lossless tells.
__device__ std::uint32_t exponent_of(float x) { return __float_as_uint(x) >> 23 & 255U; }
/// Byte `plane` of what is not exponent: low, middle, sign with the rest of the mantissa.
__device__ std::uint32_t plane_of(float x, int plane) {
  const std::uint32_t bits = __float_as_uint(x);
  if (plane < 2) return bits >> (8 * plane) & 255U;
  return (bits >> 16 & 0x7fU) | (bits >> 24 & 0x80U);
}

/// The smallest distance below the base that a width cannot express; 0 for width 0.
__device__ std::uint32_t mark_of(int width) { return (1U << width) - 1; }

/// How a block is stored.
struct Form {
  int values;  // 0: there is no such block
  std::uint32_t base, planes;
  int width, rare;

  __device__ int plane_bytes() const { return __popc(planes) * values; }
  __device__ int bits_bytes() const { return (values + 7) / 8; }
  __device__ int bytes() const { return kHeader + plane_bytes() + width * bits_bytes() + rare; }
  __device__ int words() const { return values == 0 ? 0 : (bytes() + 3) / 4; }
};

/// Four counts below 2^16, one for each block of a tile.
using Counts = std::uint64_t;

/// What the threads of a block of threads find out together, for each of their blocks.
struct Findings {
  std::uint32_t any[kTileBlocks], base[kTileBlocks];
  int rare[kTileBlocks][kWidths + 1];
  Counts warp_rare[kThreads / 32];
  std::int64_t before;  ///< words of the piece before these blocks
  int ticket;
};

__device__ int values_of_block(std::int64_t values, int block) {
  return static_cast<int>(max(std::int64_t{0}, min(std::int64_t{kBlock}, values - block * kBlock)));
}

/// All threads get the forms of all blocks.
__device__ void find_forms(const Four (&four)[kTileBlocks], std::int64_t values, Findings& shared,
                           Form (&forms)[kTileBlocks]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  for (int i = thread; i < kTileBlocks; i += kThreads) shared.any[i] = shared.base[i] = 0;
  for (int i = thread; i < kTileBlocks * (kWidths + 1); i += kThreads) {
    shared.rare[i / (kWidths + 1)][i % (kWidths + 1)] = 0;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kTileBlocks; ++j) {
    std::uint32_t any = 0, base = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      any |= __float_as_uint(four[j].of[i]);
      base = max(base, exponent_of(four[j].of[i]));
    }
    any = __reduce_or_sync(kAll, any);
    base = __reduce_max_sync(kAll, base);
    if (lane == 0) atomicOr(&shared.any[j], any), atomicMax(&shared.base[j], base);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kTileBlocks; ++j) {
    const int there = min(4, values_of_block(values, j) - 4 * thread);
    // Counts of widths 1 to 4 and 5 to 7, a byte each: those of a warp are 128 at most.
    std::uint32_t counts[2] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t below = shared.base[j] - exponent_of(four[j].of[i]);
#pragma unroll
      for (int width = 1; width <= kWidths; ++width) {
        const bool is_rare = i < there && below >= mark_of(width);
        counts[(width - 1) / 4] += (is_rare ? 1U : 0U) << (width - 1) % 4 * 8;
      }
    }
    counts[0] = __reduce_add_sync(kAll, counts[0]);
    counts[1] = __reduce_add_sync(kAll, counts[1]);
    if (lane < kWidths) {
      const auto count = static_cast<int>(counts[lane / 4] >> lane % 4 * 8 & 255U);
      if (count > 0) atomicAdd(&shared.rare[j][lane + 1], count);
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kTileBlocks; ++j) {
    Form& form = forms[j];
    form.values = values_of_block(values, j);
    form.base = shared.base[j];
    const std::uint32_t any = shared.any[j];
    form.planes = ((any & 0xffU) != 0 ? 1U : 0U) | ((any & 0xff00U) != 0 ? 2U : 0U) |
                  ((any & 0x807f0000U) != 0 ? 4U : 0U);
    form.width = 0;
    form.rare = form.values;
    int least = form.values;
    for (int width = 1; width <= kWidths; ++width) {
      const int planes = width * form.bits_bytes(), rare = shared.rare[j][width];
      if (planes >= least) break;
      if (planes + rare < least) form.width = width, form.rare = rare, least = planes + rare;
    }
  }
}

// Sums of words of all tiles before one, found while these are still at work (Merrill and Garland's
// look-back): a tile says its own sum, then that of all up to it.
constexpr std::uint64_t kOwn = std::uint64_t{1} << 62, kUpToHere = std::uint64_t{2} << 62;
constexpr std::uint64_t kSum = kOwn - 1;

/// By one warp: the words of the tiles from `first` on that come before `tile`.
__device__ std::int64_t words_before(volatile std::uint64_t* sums, std::int64_t first,
                                     std::int64_t tile, std::int64_t own) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0 && tile > first) sums[tile] = kOwn | static_cast<std::uint64_t>(own);
  std::int64_t before = 0;
  for (std::int64_t last = tile - 1; last >= first; last -= 32) {
    const std::int64_t other = last - lane;
    std::uint64_t said = 0;
    do {
      said = other >= first ? sums[other] : std::uint64_t{kUpToHere};
    } while (__any_sync(kAll, said == 0));
    const unsigned whole = __ballot_sync(kAll, (said & kUpToHere) != 0);
    const int end = whole != 0 ? __ffs(static_cast<int>(whole)) - 1 : 31;
    auto sum = lane <= end ? static_cast<std::int64_t>(said & kSum) : 0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
    before += sum;
    if (whole != 0) break;
  }
  if (lane == 0) sums[tile] = kUpToHere | static_cast<std::uint64_t>(before + own);
  return before;
}

/// Of a thread's four bytes those that are there.
__device__ void put_bytes(std::uint32_t bytes, int there, std::byte* to) {
  if (there >= 4) {
    store_number(bytes, to);
  } else {
    for (int i = 0; i < there; ++i) to[i] = static_cast<std::byte>(bytes >> (8 * i));
  }
}

__device__ int count_of(Counts counts, int block) {
  return static_cast<int>(counts >> (16 * block) & 0xffffU);
}

/// The sum of `own` over the threads before this one.
__device__ Counts sum_before(Counts own, Counts* of_warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Counts up_to = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Counts other = __shfl_up_sync(kAll, up_to, step);
    if (lane >= step) up_to += other;
  }
  if (lane == 31) of_warps[warp] = up_to;
  __syncthreads();
  Counts before = up_to - own;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) before += i < warp ? of_warps[i] : 0;
  return before;
}

/// How far below the base exponents are, `mark` at most; 0 behind the end.
struct Distances {
  std::uint32_t of[4];

  __device__ Distances(const Four& four, const Form& form) {
    const int there = form.values - 4 * static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      of[i] = i < there ? min(form.base - exponent_of(four.of[i]), mark_of(form.width)) : 0;
    }
  }
};

__device__ int rare_of(const std::uint32_t (&below)[4], const Form& form) {
  const int there = form.values - 4 * static_cast<int>(threadIdx.x);
  int rare = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) rare += i < there && below[i] == mark_of(form.width) ? 1 : 0;
  return rare;
}

/// Of the block's rare exponents, `rare_before` are those of threads before this one.
__device__ void put_block(const Four& four, const Form& form, int rare_before, std::byte* to) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int there = max(0, min(4, form.values - 4 * thread));
  if (thread == 0) {
    to[0] = static_cast<std::byte>(form.base);
    to[1] = static_cast<std::byte>(static_cast<std::uint32_t>(form.width) | form.planes << 4);
    store_number(static_cast<std::uint16_t>(form.rare), to + 2);
    for (int i = form.bytes(); i < 4 * form.words(); ++i) to[i] = std::byte{0};
  }
  std::byte* out = to + kHeader;
#pragma unroll
  for (int plane = 0; plane < 3; ++plane) {
    if ((form.planes >> plane & 1U) == 0) continue;
    std::uint32_t bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) bytes |= plane_of(four.of[i], plane) << (8 * i);
    put_bytes(bytes, there, out + 4 * thread);
    out += form.values;
  }
  const Distances below(four, form);
#pragma unroll 1
  for (int bit = 0; bit < form.width; ++bit) {
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) bits |= (below.of[i] >> bit & 1U) << (4 * (lane % 8) + i);
#pragma unroll
    for (int step = 1; step < 8; step *= 2) bits |= __shfl_xor_sync(kAll, bits, step);
    if (lane % 8 == 0) {
      put_bytes(bits, max(0, min(4, form.bits_bytes() - thread / 2)), out + thread / 2);
    }
    out += form.bits_bytes();
  }
  out += rare_before;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < there && below.of[i] == mark_of(form.width)) {
      *out++ = static_cast<std::byte>(exponent_of(four.of[i]));
    }
  }
}

/// `sums` has a number for each tile and one more, all zero: which tile is the next.
__global__ void __launch_bounds__(kThreads)
    encode_lossless(EncodeCall call, TileSizes sizes, std::int64_t tiles, std::uint64_t* sums) {
  __shared__ Findings shared;
  if (threadIdx.x == 0)
    shared.ticket =
        static_cast<int>(atomicAdd(reinterpret_cast<unsigned long long*>(sums + tiles), 1ULL));
  __syncthreads();
  const std::int64_t number = shared.ticket, piece = number / sizes.tiles;
  const std::int64_t in_piece = (number - piece * sizes.tiles) * kUsualTile;
  const std::int64_t first = piece * sizes.piece + in_piece;
  const std::int64_t piece_values = min(sizes.piece, sizes.values - piece * sizes.piece);
  const std::int64_t values = min(std::int64_t{kUsualTile}, piece_values - in_piece);
  Four four[kTileBlocks];
#pragma unroll
  for (int j = 0; j < kTileBlocks; ++j) {
    const int at = j * kBlock + 4 * static_cast<int>(threadIdx.x);
    four[j] = Four::load(call.x + first + at, values - at);
  }
  Form forms[kTileBlocks];
  find_forms(four, values, shared, forms);
  std::int64_t own = 0;
  Counts rare = 0;
#pragma unroll
  for (int j = 0; j < kTileBlocks; ++j) {
    own += forms[j].words();
    rare |= static_cast<Counts>(rare_of(Distances(four[j], forms[j]).of, forms[j])) << (16 * j);
  }
  const Counts rare_before = sum_before(rare, shared.warp_rare);
  if (threadIdx.x < 32) {
    const std::int64_t before = words_before(sums, piece * sizes.tiles, number, own);
    if (threadIdx.x == 0) shared.before = before;
  }
  __syncthreads();
  std::byte* const to = call.bytes + static_cast<std::size_t>(piece) * call.piece_bytes;
  std::int64_t words = (piece_values + kBlock - 1) / kBlock + shared.before;  // behind the table
#pragma unroll
  for (int j = 0; j < kTileBlocks; ++j) {
    if (forms[j].values == 0) break;
    put_block(four[j], forms[j], count_of(rare_before, j), to + 4 * words);
    words += forms[j].words();
    if (threadIdx.x == 0) {
      store_number(static_cast<std::uint32_t>(words), to + 4 * (in_piece / kBlock + j));
    }
  }
}

/// What a thread has of a block on the way back.
struct Parts {
  Form form;
  const std::byte* rare;   // the block's, or null where its bytes are damaged
  std::uint32_t bits[4];   // without exponents
  std::uint32_t below[4];  // distances of exponents

  __device__ void load(const DecodeCall& call, std::int64_t number) {
    const int thread = static_cast<int>(threadIdx.x);
    const std::int64_t table = (call.values + kBlock - 1) / kBlock * 4;
    form = {.values = values_of_block(call.values - number * kBlock, 0)};
    rare = nullptr;
    if (form.values == 0) return;
    const auto end_of = [&](std::int64_t block) {
      return block < 0 ? table
                       : std::int64_t{4} * load_number<std::uint32_t>(call.bytes + 4 * block);
    };
    const std::int64_t begin = end_of(number - 1), end = end_of(number);
    if (begin < table || end < begin + kHeader ||
        end > static_cast<std::int64_t>(call.size_bytes)) {
      return;
    }
    const std::byte* in = call.bytes + begin;
    const auto widths = static_cast<std::uint32_t>(in[1]);
    form.base = static_cast<std::uint32_t>(in[0]);
    form.width = static_cast<int>(widths & 7U);
    form.planes = widths >> 4 & 7U;
    form.rare = load_number<std::uint16_t>(in + 2);
    if (4 * form.words() != end - begin) return;
    in += kHeader;
    const int there = max(0, min(4, form.values - 4 * thread));
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = below[i] = 0;
#pragma unroll
    for (int plane = 0; plane < 3; ++plane) {
      if ((form.planes >> plane & 1U) == 0) continue;
      const std::uint32_t bytes = four_bytes(in + 4 * thread, there);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t byte = bytes >> (8 * i) & 255U;
        bits[i] |= plane < 2 ? byte << (8 * plane) : (byte & 0x7fU) << 16 | (byte & 0x80U) << 24;
      }
      in += form.values;
    }
#pragma unroll
    for (int bit = 0; bit < kWidths; ++bit) {
      if (bit >= form.width) break;
      const unsigned nibble =
          there > 0 ? static_cast<unsigned>(in[thread / 2]) >> (thread % 2 * 4) : 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) below[i] |= (nibble >> i & 1U) << bit;
      in += form.bits_bytes();
    }
    rare = in;
  }

  __device__ static std::uint32_t four_bytes(const std::byte* from, int there) {
    if (there == 4) return load_number<std::uint32_t>(from);
    std::uint32_t bytes = 0;
    for (int i = 0; i < there; ++i) bytes |= static_cast<std::uint32_t>(from[i]) << (8 * i);
    return bytes;
  }

  /// The values; the thread's first rare exponent is number `at` of the block.
  __device__ Four values(int at) const {
    const int there = form.values - 4 * static_cast<int>(threadIdx.x);
    Four four;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t exponent = (form.base - below[i]) & 255U;
      if (form.rare > 0 && i < there && below[i] == mark_of(form.width)) {
        if (at < form.rare) exponent = static_cast<std::uint32_t>(rare[at]);
        ++at;
      }
      four.of[i] = __uint_as_float(bits[i] | exponent << 23);
    }
    return four;
  }
};

/// Notes in `damaged` that bytes are not those of so many values.
__global__ void __launch_bounds__(kThreads) decode_lossless(DecodeCall call, int* damaged) {
  __shared__ Counts warp_rare[kThreads / 32];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTileBlocks;
  Parts parts[kTileBlocks];
  Counts own = 0;
#pragma unroll
  for (int j = 0; j < kTileBlocks; ++j) {
    parts[j].load(call, first + j);
    if (parts[j].rare == nullptr) continue;
    own |= static_cast<Counts>(rare_of(parts[j].below, parts[j].form)) << (16 * j);
  }
  const Counts before = sum_before(own, warp_rare);
#pragma unroll
  for (int j = 0; j < kTileBlocks; ++j) {
    const Form& form = parts[j].form;
    if (form.values == 0) continue;
    // Distances that stand for a rare exponent are as many as these, unless there are none.
    const int at = count_of(before, j);
    const bool is_last = threadIdx.x == kThreads - 1;
    if (parts[j].rare == nullptr ||
        (is_last && form.rare > 0 && at + count_of(own, j) != form.rare)) {
      *damaged = 1;
    }
    if (parts[j].rare == nullptr) continue;
    const int place = 4 * static_cast<int>(threadIdx.x);
    put(parts[j].values(at), call.y + (first + j) * kBlock + place, form.values - place, call.adds);
  }
}

}  // namespace

void encode(const Lossless&, const EncodeCall& call, Stream& stream) {
  ops::cuda::StreamState& state = ops::cuda::state_of(stream);
  const TileSizes sizes{.values = call.values,
                        .tile = kUsualTile,
                        .tile_bytes = 0,
                        .piece = call.piece,
                        .tiles = (call.piece + kUsualTile - 1) / kUsualTile,
                        .piece_bytes = call.piece_bytes};
  const std::int64_t last = call.values - (call.values - 1) / call.piece * call.piece;
  const std::int64_t tiles =
      (call.values - 1) / call.piece * sizes.tiles + (last + kUsualTile - 1) / kUsualTile;
  const std::size_t bytes = static_cast<std::size_t>(tiles + 1) * sizeof(std::uint64_t);
  auto* const sums = static_cast<std::uint64_t*>(state.workspace.at_least(bytes));
  HEDDLE_CUDA(cudaMemsetAsync(sums, 0, bytes, state.stream));
  encode_lossless<<<static_cast<unsigned>(tiles), kThreads, 0, state.stream>>>(call, sizes, tiles,
                                                                               sums);
  HEDDLE_CUDA(cudaGetLastError());
}

void decode(const Lossless& codec, const DecodeCall& call, Stream& stream) {
  if (call.size_bytes < codec.table_bytes(call.values)) codec.refuse_damaged();
  ops::cuda::StreamState& state = ops::cuda::state_of(stream);
  auto* const damaged = static_cast<int*>(state.workspace.at_least(sizeof(int)));
  HEDDLE_CUDA(cudaMemsetAsync(damaged, 0, sizeof(int), state.stream));
  const auto tiles = static_cast<unsigned>((call.values + kUsualTile - 1) / kUsualTile);
  decode_lossless<<<tiles, kThreads, 0, state.stream>>>(call, damaged);
  HEDDLE_CUDA(cudaGetLastError());
  int is_damaged = 0;
  HEDDLE_CUDA(
      cudaMemcpyAsync(&is_damaged, damaged, sizeof(int), cudaMemcpyDeviceToHost, state.stream));
  HEDDLE_CUDA(cudaStreamSynchronize(state.stream));
  if (is_damaged != 0) codec.refuse_damaged();
}

}  // namespace heddle::codec::cuda
