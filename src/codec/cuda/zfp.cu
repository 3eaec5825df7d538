#include <numeric>

#include "codec/cuda/tiles.h"
#include "codec/zfp.h"
#include "codec/zfp_block.h"

namespace heddle::codec::cuda {
namespace {

constexpr int kZfpThreads = 256;  // a block of 4 x 4 of a usual tile each

/// How an array is cut into ZFP's blocks.
struct BlockRows {
  std::int64_t columns, row_values, row_blocks;
  int bits;   // of a block
  int group;  // blocks that fill whole words of 64 bits: the work of one thread
  bool truncates;
};

/// Planes of bits (zfp_block.h) of every thread of a block, in shared memory: which plane is next
/// is known at run time only, and registers have no index.
using PlaneRoom = std::uint16_t[16][kZfpThreads];
struct SharedPlanes {
  std::uint16_t* own;
  __device__ explicit SharedPlanes(PlaneRoom& room) : own(room[0] + threadIdx.x) {}
  __device__ std::uint16_t& operator[](int plane) const { return own[plane * kZfpThreads]; }
};

// Streams of bits in words of 32, from the lowest bit of a word on (zfp_block.h). A block of whole
// words is a shift register: no branches, and one store for all of it.

template <int kWords>
class BlockWriter {
 public:
  __device__ void put(std::uint32_t value, int count) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      word_[i] = __funnelshift_r(word_[i], i + 1 < kWords ? word_[i + 1] : value, count);
    }
  }
  __device__ void put_zeros(int count) {
    for (; count > 31; count -= 31) put(0, 31);
    put(0, count);
  }
  /// When all bits have been put.
  __device__ const std::uint32_t* words() const { return word_; }

 private:
  std::uint32_t word_[kWords] = {};
};

template <int kWords>
class BlockReader {
 public:
  __device__ explicit BlockReader(const std::uint32_t* words) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word_[i] = words[i];
  }
  __device__ std::uint32_t window() const { return word_[0]; }
  __device__ void skip(int count) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      word_[i] = __funnelshift_r(word_[i], i + 1 < kWords ? word_[i + 1] : 0, count);
    }
  }
  __device__ void skip_many(int count) {
    for (; count > 31; count -= 31) skip(31);
    skip(count);
  }

 private:
  std::uint32_t word_[kWords];
};

template <int kWords>
__device__ void store_words(const std::uint32_t* words, std::byte* to) {
  if (is_aligned(to, 16)) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      reinterpret_cast<uint4*>(to)[i / 4] = {words[i], words[i + 1], words[i + 2], words[i + 3]};
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) store_number(words[i], to + 4 * i);
}
template <int kWords>
__device__ void load_words(const std::byte* from, std::uint32_t* words) {
  if (is_aligned(from, 16)) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[i / 4];
      words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = load_number<std::uint32_t>(from + 4 * i);
}

class WordWriter {
 public:
  __device__ explicit WordWriter(std::byte* to) : to_(to) {}

  __device__ void put(std::uint32_t value, int count) {
    word_ |= std::uint64_t{zfp::low_bits(value, count)} << filled_;
    filled_ += count;
    if (filled_ >= 32) store();
  }
  __device__ void put_zeros(int count) {
    for (filled_ += count; filled_ >= 32;) store();
  }
  /// Up to a whole word of 64 bits, of which `written` have been put since the start.
  __device__ void end(int written) {
    if (written % 64 != 0) put_zeros(64 - written % 64);
  }

 private:
  __device__ void store() {
    store_number(static_cast<std::uint32_t>(word_), to_);
    to_ += 4;
    word_ >>= 32;
    filled_ -= 32;
  }

  std::byte* to_;
  std::uint64_t word_ = 0;
  int filled_ = 0;
};

/// Behind the last byte come zeros.
class WordReader {
 public:
  __device__ WordReader(const std::byte* from, const std::byte* end) : from_(from), end_(end) {}

  __device__ std::uint32_t window() {
    if (filled_ < 32) fill();
    return static_cast<std::uint32_t>(word_);
  }
  __device__ void skip(int count) {
    if (filled_ < 32) fill();
    word_ >>= count;
    filled_ -= count;
  }
  __device__ void skip_many(int count) {
    for (; count > 31; count -= 31) skip(31);
    skip(count);
  }

 private:
  __device__ void fill() {
    std::uint32_t next = 0;
    if (from_ + 4 <= end_) next = load_number<std::uint32_t>(from_);
    from_ += 4;
    word_ |= std::uint64_t{next} << filled_;
    filled_ += 32;
  }

  const std::byte *from_, *end_;
  std::uint64_t word_ = 0;
  int filled_ = 0;
};

/// Calls body(first value of the block's rows in the tile, values from there on, first column) for
/// the blocks of a group, from block `first` of the tile on. Returns how many these are.
template <class Body>
__device__ int for_group(const BlockRows& rows, std::int64_t first, std::int64_t values,
                         const Body& body) {
  int count = 0;
  for (; count < rows.group; ++count) {
    const std::int64_t block = first + count, row = block / rows.row_blocks;
    const std::int64_t at = row * rows.row_values;
    if (at >= values) break;
    body(at, min(rows.row_values, values - at), 4 * (block - row * rows.row_blocks));
  }
  return count;
}

template <int kDims>
__device__ void load_block(const BlockRows& rows, const EncodeCall& call, std::int64_t first,
                           std::int64_t n, std::int64_t column, float* block) {
  const bool is_whole = kDims == 1 ? n >= 4 : rows.columns == 4 && n >= 16;
  if (is_whole) {
#pragma unroll
    for (int i = 0; i < zfp::kSize<kDims>; i += 4) {
      const Four four = load_sum(call.x, call.residual, first + i, 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) block[i + j] = four.of[j];
    }
    return;
  }
  const auto value = [&](std::int64_t i) {
    const float x = call.x[first + i];
    return call.residual == nullptr ? x : x + call.residual[first + i];
  };
  if constexpr (kDims == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) block[i] = i < n ? value(i) : 0.0F;
    zfp::continue_line(block, static_cast<int>(n), 1);
  } else {
    zfp::gather_block(rows.columns, n, column, value, block);
  }
}

/// Calls put(i, value) for the values that are there, counted from the block's rows on.
template <int kDims, class Put>
__device__ void put_block(const BlockRows& rows, std::int64_t n, std::int64_t column,
                          const float* block, const Put& put) {
  if constexpr (kDims == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < n) put(i, block[i]);
    }
  } else {
    zfp::scatter_block(rows.columns, n, column, block, put);
  }
}

template <int kDims>
__global__ void __launch_bounds__(kZfpThreads)
    encode_zfp(EncodeCall call, TileSizes sizes, BlockRows rows) {
  __shared__ PlaneRoom room;
  const SharedPlanes planes(room);
  const Tile tile(sizes);
  if (tile.values <= 0) return;
  const std::int64_t blocks =
      (tile.values + rows.row_values - 1) / rows.row_values * rows.row_blocks;
  std::byte* const to = call.bytes + tile.byte;
  if (has_bad(call, tile)) {
    return clear_bytes(to, static_cast<std::size_t>((blocks * rows.bits + 63) / 64 * 8));
  }
  for (std::int64_t at = static_cast<std::int64_t>(threadIdx.x) * rows.group; at < blocks;
       at += static_cast<std::int64_t>(kZfpThreads) * rows.group) {
    std::byte* const group_at = to + at * rows.bits / 8;
    WordWriter out(group_at);
    const int count = for_group(
        rows, at, tile.values, [&](std::int64_t first, std::int64_t n, std::int64_t column) {
          float block[zfp::kSize<kDims>];
          load_block<kDims>(rows, call, tile.first + first, n, column, block);
          zfp::encode_block<kDims>(block, rows.bits, planes, out);
        });
    out.end(count * rows.bits);
    if (call.residual == nullptr) continue;
    WordReader in(group_at, group_at + (count * rows.bits + 63) / 64 * 8);
    for_group(rows, at, tile.values, [&](std::int64_t first, std::int64_t n, std::int64_t column) {
      float block[zfp::kSize<kDims>];
      zfp::decode_block<kDims>(in, rows.bits, rows.truncates, planes, block);
      put_block<kDims>(rows, n, column, block, [&](std::int64_t i, float decoded) {
        const std::int64_t own = tile.first + first + i;
        call.residual[own] = call.x[own] + call.residual[own] - decoded;
      });
    });
  }
}

template <int kDims>
__global__ void __launch_bounds__(kZfpThreads)
    decode_zfp(DecodeCall call, TileSizes sizes, BlockRows rows) {
  __shared__ PlaneRoom room;
  const SharedPlanes planes(room);
  const Tile tile(sizes);
  const std::int64_t blocks =
      (tile.values + rows.row_values - 1) / rows.row_values * rows.row_blocks;
  const std::byte* const from = call.bytes + tile.byte;
  for (std::int64_t at = static_cast<std::int64_t>(threadIdx.x) * rows.group; at < blocks;
       at += static_cast<std::int64_t>(kZfpThreads) * rows.group) {
    WordReader in(from + at * rows.bits / 8, call.bytes + call.size_bytes);
    for_group(rows, at, tile.values, [&](std::int64_t first, std::int64_t n, std::int64_t column) {
      float block[zfp::kSize<kDims>];
      zfp::decode_block<kDims>(in, rows.bits, rows.truncates, planes, block);
      float* const y = call.y + tile.first + first;
      if (kDims == 2 && rows.columns == 4 && n >= 16) {
#pragma unroll
        for (int i = 0; i < zfp::kSize<kDims>; i += 4) {
          put({block[i], block[i + 1], block[i + 2], block[i + 3]}, y + i, 4, call.adds);
        }
        return;
      }
      put_block<kDims>(rows, n, column, block, [&](std::int64_t i, float decoded) {
        y[i] = call.adds ? y[i] + decoded : decoded;
      });
    });
  }
}

// The usual case: 16 neighbours are a block, of whole words of four. A thread has one block of the
// tile, which it reads once.

struct Sixteen {
  float of[16];

  /// From values of which n are there; what is not is continued.
  template <class Value>
  __device__ static Sixteen gather(std::int64_t n, const Value& value) {
    Sixteen result;
    zfp::gather_block(4, n, 0, value, result.of);
    return result;
  }
  __device__ static Sixteen load(const float* from, std::int64_t n) {
    if (n < 16 || !is_aligned(from, 16)) {
      return gather(n, [&](std::int64_t i) { return from[i]; });
    }
    Sixteen result;
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const Four four = Four::load_whole(from + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) result.of[i + j] = four.of[j];
    }
    return result;
  }
  __device__ void store(float* to, std::int64_t n) const {
    if (n < 16 || !is_aligned(to, 16)) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (i < n) to[i] = of[i];
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      Four{of[i], of[i + 1], of[i + 2], of[i + 3]}.store_whole(to + i);
    }
  }
  __device__ void add(const Sixteen& other) {
#pragma unroll
    for (int i = 0; i < 16; ++i) of[i] += other.of[i];
  }
  __device__ bool is_finite() const {
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) most = max(most, magnitude_bits(of[i]));
    return most < kInfinityBits;
  }
};

template <int kWords>
__global__ void __launch_bounds__(kZfpThreads)
    encode_neighbours(EncodeCall call, TileSizes sizes, bool truncates) {
  __shared__ PlaneRoom room;
  const SharedPlanes planes(room);
  const Tile tile(sizes);
  const std::int64_t first = tile.first + 16 * static_cast<int>(threadIdx.x);
  const std::int64_t n = tile.values - 16 * static_cast<int>(threadIdx.x);
  Sixteen sum{};
  if (n > 0) {
    sum = Sixteen::load(call.x + first, n);
    if (call.residual != nullptr) sum.add(Sixteen::load(call.residual + first, n));
  }
  const bool is_finite = sum.is_finite();
  if (!is_finite) {
    for (int i = 0; i < 16; i += 4) {
      note_bad(call.bad, {sum.of[i], sum.of[i + 1], sum.of[i + 2], sum.of[i + 3]}, first + i);
    }
  }
  const bool has_bad = __syncthreads_or(!is_finite) != 0;
  if (n <= 0) return;
  std::byte* const to = call.bytes + tile.byte + 4 * kWords * threadIdx.x;
  BlockWriter<kWords> out;
  if (has_bad) return store_words<kWords>(out.words(), to);
  zfp::encode_block<2>(sum.of, 32 * kWords, planes, out);
  store_words<kWords>(out.words(), to);
  if (call.residual == nullptr) return;
  BlockReader<kWords> in(out.words());
  Sixteen decoded;
  zfp::decode_block<2>(in, 32 * kWords, truncates, planes, decoded.of);
#pragma unroll
  for (int i = 0; i < 16; ++i) sum.of[i] -= decoded.of[i];
  sum.store(call.residual + first, n);
}

template <int kWords>
__global__ void __launch_bounds__(kZfpThreads)
    decode_neighbours(DecodeCall call, TileSizes sizes, bool truncates) {
  __shared__ PlaneRoom room;
  const SharedPlanes planes(room);
  const Tile tile(sizes);
  const std::int64_t n = tile.values - 16 * static_cast<int>(threadIdx.x);
  if (n <= 0) return;
  std::uint32_t words[kWords];
  load_words<kWords>(call.bytes + tile.byte + 4 * kWords * threadIdx.x, words);
  BlockReader<kWords> in(words);
  Sixteen decoded;
  zfp::decode_block<2>(in, 32 * kWords, truncates, planes, decoded.of);
  float* const y = call.y + tile.first + 16 * static_cast<int>(threadIdx.x);
  if (call.adds) {
    Sixteen sum = Sixteen::load(y, n);
    sum.add(decoded);
    decoded = sum;
  }
  decoded.store(y, n);
}

/// Words of a block where it is one of encode_neighbours and decode_neighbours; 0: of any kind.
int neighbour_words(const Zfp& codec) {
  const int words = codec.block_bits() / 32;
  return codec.columns() == 4 && (words == 4 || words == 8) && codec.block_bits() % 32 == 0 ? words
                                                                                            : 0;
}

BlockRows block_rows(const Zfp& codec) {
  return {.columns = codec.columns(),
          .row_values = codec.row_values(),
          .row_blocks = codec.row_blocks(),
          .bits = codec.block_bits(),
          .group = 64 / std::gcd(codec.block_bits(), 64),
          .truncates = codec.truncates()};
}

}  // namespace

void encode(const Zfp& codec, const EncodeCall& call, Stream& stream) {
  const TileSizes sizes = tile_sizes(codec, call);
  const cudaStream_t on = launch_stream(stream);
  if (const int words = neighbour_words(codec); words != 0) {
    const auto kernel = words == 4 ? encode_neighbours<4> : encode_neighbours<8>;
    kernel<<<blocks_of(sizes), kZfpThreads, 0, on>>>(call, sizes, codec.truncates());
  } else {
    const auto kernel = codec.is_line() ? encode_zfp<1> : encode_zfp<2>;
    kernel<<<blocks_of(sizes), kZfpThreads, 0, on>>>(call, sizes, block_rows(codec));
  }
  HEDDLE_CUDA(cudaGetLastError());
}

void decode(const Zfp& codec, const DecodeCall& call, Stream& stream) {
  const TileSizes sizes = tile_sizes(codec, call);
  const cudaStream_t on = launch_stream(stream);
  if (const int words = neighbour_words(codec); words != 0) {
    const auto kernel = words == 4 ? decode_neighbours<4> : decode_neighbours<8>;
    kernel<<<blocks_of(sizes), kZfpThreads, 0, on>>>(call, sizes, codec.truncates());
  } else {
    const auto kernel = codec.is_line() ? decode_zfp<1> : decode_zfp<2>;
    kernel<<<blocks_of(sizes), kZfpThreads, 0, on>>>(call, sizes, block_rows(codec));
  }
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::codec::cuda
