// Codecs of a scale and a code of 8 or 4 bits for each value of a block: int8, int4, fp8, e3m0.
#include "codec/block_int.h"
#include "codec/cuda/tiles.h"
#include "codec/e3m0.h"
#include "codec/fp8.h"

namespace heddle::codec::cuda {
namespace {

constexpr int kThreads = 128, kOwn = kUsualTile / (4 * kThreads);  // groups of four of a thread
constexpr int kMostBlocks = kUsualTile / 8;  // of a tile: blocks have 8 values or more
constexpr unsigned kAll = 0xffffffffU;

// What tells the codecs apart. Scale is what is stored of a scale; `divisor` is what values are
// divided by, `factor` what codes are multiplied by.

template <int kBits_>
struct IntCode {
  static constexpr int kBits = kBits_, kMost = (1 << (kBits - 1)) - 1;
  using Scale = std::uint32_t;
  __device__ static Scale scale(std::uint32_t largest) {
    return __float_as_uint(block_scale(largest, static_cast<float>(kMost)));
  }
  __device__ static float divisor(Scale scale) { return codec::divisor(__uint_as_float(scale)); }
  __device__ static float factor(Scale scale) { return __uint_as_float(scale); }
  __device__ static std::uint32_t code(float value) {
    return static_cast<std::uint32_t>(nearest_code(value, kMost)) & ((1U << kBits) - 1);
  }
  __device__ static float value(std::uint32_t code) {
    return static_cast<float>(static_cast<std::int32_t>(code << (32 - kBits)) >> (32 - kBits));
  }
};

struct Fp8Code {
  static constexpr int kBits = 8;
  using Scale = std::uint32_t;
  __device__ static Scale scale(std::uint32_t largest) {
    return __float_as_uint(block_scale(largest, 448.0F));
  }
  __device__ static float divisor(Scale scale) { return codec::divisor(__uint_as_float(scale)); }
  __device__ static float factor(Scale scale) { return __uint_as_float(scale); }
  __device__ static std::uint32_t code(float value) { return e4m3_of(value); }
  __device__ static float value(std::uint32_t code) {
    return from_e4m3(static_cast<std::uint8_t>(code));
  }
};

struct E3m0Code {
  static constexpr int kBits = 4;
  using Scale = std::uint16_t;
  __device__ static Scale scale(std::uint32_t largest) {
    return bf16_bits(__uint_as_float(largest));
  }
  /// Where the scale rounds to zero all values decode to it, whatever their codes.
  __device__ static float divisor(Scale scale) { return scale == 0 ? 1.0F : from_bf16_bits(scale); }
  __device__ static float factor(Scale scale) { return from_bf16_bits(scale); }
  __device__ static std::uint32_t code(float value) { return e3m0_of(value); }
  __device__ static float value(std::uint32_t code) { return from_e3m0(code); }
};

/// Divides values by a number above 0: results are those of a division, rounded to nearest, by
/// Markstein's steps. The hardware's own way to divide takes twice as many.
struct Division {
  float by, inverse;

  __device__ explicit Division(float by) : by(by), inverse(1.0F / by) {}
  __device__ Division(float by, float inverse) : by(by), inverse(inverse) {}

  __device__ float of(float value) const {
    constexpr float kLeast = 0x1p-90F;  // below it remainders may be too small for a float
    if (by < kLeast) return value / by;
    float quotient = value * inverse;
#pragma unroll
    for (int i = 0; i < 2; ++i) quotient = fmaf(fmaf(-quotient, by, value), inverse, quotient);
    return copysignf(quotient, value);
  }
};

struct Blocks {
  int size, bytes;  // of a block
};

/// Bytes of so many values.
template <class Code>
__device__ int bytes_of(int values, const Blocks& blocks) {
  const int whole = values / blocks.size, rest = values % blocks.size;
  const int of_rest = static_cast<int>(sizeof(typename Code::Scale)) + (rest * Code::kBits + 7) / 8;
  return whole * blocks.bytes + (rest > 0 ? of_rest : 0);
}

/// Codes of four values, one in each byte, and what they decode to.
template <class Code>
__device__ std::uint32_t codes_of(const Four& four, const Division& division, float factor,
                                  Four& decoded) {
  std::uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t code = Code::code(division.of(four.of[i]));
    decoded.of[i] = Code::value(code) * factor;
    word |= code << (8 * i);
  }
  return word;
}

/// Codes of 4 bits, two to a byte, from one in each byte of `codes`.
__device__ void pack_codes(const std::uint8_t* codes, int values, const Blocks& blocks,
                           int scale_bytes, std::byte* to) {
  const int words = blocks.size / 8;  // of a block: its size is a multiple of 8
  for (int i = static_cast<int>(threadIdx.x); 8 * i < values; i += kThreads) {
    const int block = i / words, in_block = i % words;
    const int first = block * blocks.size, count = min(blocks.size, values - first);
    std::byte* const at = to + block * blocks.bytes + scale_bytes;
    if (count == blocks.size) {
      const auto* const from = reinterpret_cast<const std::uint32_t*>(codes + first);
      store_number(from[in_block] | from[in_block + words] << 4, at + 4 * in_block);
    } else {
      const int half = (count + 1) / 2;
      for (int byte = 4 * in_block; byte < min(4 * in_block + 4, half); ++byte) {
        const int low = codes[first + byte];
        const int high = half + byte < count ? codes[first + half + byte] : 0;
        at[byte] = static_cast<std::byte>(low | high << 4);
      }
    }
  }
}

/// The place of a thread's four values number j in a tile.
__device__ int place_of(int j) { return 4 * (static_cast<int>(threadIdx.x) + j * kThreads); }

/// Blocks of any size, a tile of any size.
template <class Code, bool kFeedback>
__device__ void encode_any(const EncodeCall& call, const Tile& tile, const Blocks& blocks) {
  __shared__ std::uint32_t largest[kMostBlocks];
  __shared__ alignas(4) std::uint8_t codes[Code::kBits == 4 ? kUsualTile : 4];
  using Scale = typename Code::Scale;
  const auto values = static_cast<int>(tile.values);
  for (int i = static_cast<int>(threadIdx.x); i < kMostBlocks; i += kThreads) largest[i] = 0;
  std::byte* const to = call.bytes + tile.byte;
  if (has_bad(call, tile)) {
    return clear_bytes(to, static_cast<std::size_t>(bytes_of<Code>(values, blocks)));
  }
  const float* const residual = kFeedback ? call.residual : nullptr;
  for (int j = 0; j < kOwn; ++j) {
    const int at = place_of(j);
    if (at >= values) break;
    atomicMax(&largest[at / blocks.size],
              load_sum(call.x, residual, tile.first + at, values - at).largest_bits());
  }
  __syncthreads();
  for (int j = 0; j < kOwn; ++j) {
    const int at = place_of(j), count = values - at;
    if (count <= 0) break;
    const int block = at / blocks.size, in_block = at % blocks.size;
    const Scale scale = Code::scale(largest[block]);
    std::byte* const block_at = to + block * blocks.bytes;
    if (in_block == 0) store_number(scale, block_at);
    const Four four = load_sum(call.x, residual, tile.first + at, count);
    Four decoded;
    const std::uint32_t word =
        codes_of<Code>(four, Division(Code::divisor(scale)), Code::factor(scale), decoded);
    if constexpr (Code::kBits == 4) {
      *reinterpret_cast<std::uint32_t*>(codes + at) = word;
    } else {
      std::byte* const code_at = block_at + sizeof(Scale) + in_block;
      if (count >= 4) {
        store_number(word, code_at);
      } else {
        for (int i = 0; i < count; ++i) code_at[i] = static_cast<std::byte>(word >> (8 * i));
      }
    }
    if constexpr (kFeedback) {
      four.minus(decoded).store(call.residual + tile.first + at, count);
    }
  }
  if constexpr (Code::kBits == 4) {
    __syncthreads();
    pack_codes(codes, values, blocks, sizeof(Scale), to);
  }
}

/// Of a whole tile of aligned values and blocks of 128 or 256 (kPer = 1 or 2), what a warp has for
/// itself: 32 lanes of four values are 128, and warp w has eight such rows that follow each other.
template <class Code, int kPer>
struct WarpRows {
  static constexpr int kSize = 128 * kPer, kBlocks = kOwn / kPer;
  static constexpr int kBytes =
      static_cast<int>(sizeof(typename Code::Scale)) + kSize * Code::kBits / 8;  // of a block
  int lane, warp;
  std::int64_t first;  // of the lane's values in the first row

  __device__ explicit WarpRows(const Tile& tile)
      : lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        first(tile.first + warp * kOwn * 128 + 4 * lane) {}
};

template <class Code, bool kFeedback, int kPer>
__device__ void encode_whole(const EncodeCall& call, const Tile& tile) {
  using Scale = typename Code::Scale;
  using Rows = WarpRows<Code, kPer>;
  constexpr int kBytes = Rows::kBytes;
  const Rows rows(tile);
  const int lane = rows.lane;
  const std::int64_t first = rows.first;
  Four four[kOwn];
  std::uint32_t own_largest = 0;  // of block `lane`
  bool is_finite = true;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    four[j] = Four::load_whole(call.x + first + 128 * j);
    if constexpr (kFeedback) four[j].add(Four::load_whole(call.residual + first + 128 * j));
  }
#pragma unroll
  for (int j = 0; j < kOwn; j += kPer) {
    std::uint32_t bits = four[j].largest_bits();
#pragma unroll
    for (int i = 1; i < kPer; ++i) bits = max(bits, four[j + i].largest_bits());
    is_finite = is_finite && bits < kInfinityBits;
    bits = __reduce_max_sync(kAll, bits);
    if (lane == j / kPer) own_largest = bits;
  }
  std::byte* const to = call.bytes + tile.byte;
  if (__syncthreads_or(!is_finite)) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) note_bad(call.bad, four[j], first + 128 * j);
    return clear_bytes(to, std::size_t{kUsualTile / Rows::kSize} * kBytes);
  }
  // Each lane works out the scale of one block.
  const Scale own_scale = Code::scale(own_largest);
  const Division own_division(Code::divisor(own_scale));
  const float own_factor = Code::factor(own_scale);
  std::byte* const warp_at = to + rows.warp * Rows::kBlocks * kBytes;
  if (lane < Rows::kBlocks) store_number(own_scale, warp_at + lane * kBytes);
#pragma unroll
  for (int j = 0; j < kOwn; j += kPer) {
    const int block = j / kPer;
    const Division division(__shfl_sync(kAll, own_division.by, block),
                            __shfl_sync(kAll, own_division.inverse, block));
    const float factor = kFeedback ? __shfl_sync(kAll, own_factor, block) : 0.0F;
    std::byte* const codes = warp_at + block * kBytes + sizeof(Scale) + 4 * lane;
    std::uint32_t words[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      Four decoded;
      words[i] = codes_of<Code>(four[j + i], division, factor, decoded);
      if constexpr (kFeedback) {
        four[j + i].minus(decoded).store_whole(call.residual + first + 128 * (j + i));
      }
    }
    if constexpr (Code::kBits == 8) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) store_number(words[i], codes + 128 * i);
    } else if constexpr (kPer == 1) {  // byte i has values i and i + 64
      const std::uint32_t high = __shfl_down_sync(kAll, words[0], 16);
      if (lane < 16) store_number(words[0] | high << 4, codes);
    } else {
      store_number(words[0] | words[1] << 4, codes);
    }
  }
}

/// kPer: blocks of so many times 128 values; 0: of any size.
template <class Code, bool kFeedback, int kPer>
__global__ void __launch_bounds__(kThreads)
    encode_blocks(EncodeCall call, TileSizes sizes, Blocks blocks) {
  const Tile tile(sizes);
  if (tile.values <= 0) return;
  if constexpr (kPer > 0) {
    if (tile.values == kUsualTile && is_aligned(call.x + tile.first, 16) &&
        is_aligned(call.residual + (kFeedback ? tile.first : 0), 16)) {
      return encode_whole<Code, kFeedback, kPer>(call, tile);
    }
  }
  encode_any<Code, kFeedback>(call, tile, blocks);
}

/// The code of value `in_block` of a block of so many.
template <class Code>
__device__ std::uint32_t code_at(const std::byte* codes, int in_block, int count) {
  if (Code::kBits == 8) return static_cast<std::uint32_t>(codes[in_block]);
  const int half = (count + 1) / 2;
  return in_block < half ? static_cast<std::uint32_t>(codes[in_block]) & 15U
                         : static_cast<std::uint32_t>(codes[in_block - half]) >> 4;
}

/// Of four values of a whole block, one in each byte.
template <class Code>
__device__ std::uint32_t four_codes(const std::byte* codes, int in_block, int size) {
  if (Code::kBits == 8) return load_number<std::uint32_t>(codes + in_block);
  const bool is_high = in_block >= size / 2;
  const auto word = load_number<std::uint32_t>(codes + in_block - (is_high ? size / 2 : 0));
  return (is_high ? word >> 4 : word) & 0x0f0f0f0fU;
}

/// The inverse of encode_whole. All bytes are asked for before any is used, and of codes of 4 bits
/// those of two rows at once.
template <class Code, int kPer>
__device__ void decode_whole(const DecodeCall& call, const Tile& tile) {
  using Scale = typename Code::Scale;
  using Rows = WarpRows<Code, kPer>;
  const Rows rows(tile);
  const int lane = rows.lane;
  const std::byte* const warp_at =
      call.bytes + tile.byte + rows.warp * Rows::kBlocks * Rows::kBytes;
  const auto own_scale = load_number<Scale>(warp_at + min(lane, Rows::kBlocks - 1) * Rows::kBytes);
  std::uint32_t words[kOwn];  // a code in each byte
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const std::byte* const codes = warp_at + j / kPer * Rows::kBytes + sizeof(Scale);
    if constexpr (Code::kBits == 8) {
      words[j] = load_number<std::uint32_t>(codes + 128 * (j % kPer) + 4 * lane);
    } else if constexpr (kPer == 1) {  // byte i has values i and i + 64
      words[j] = load_number<std::uint32_t>(codes + 4 * (lane % 16)) >> lane / 16 * 4;
    } else {
      words[j] = j % 2 == 0 ? load_number<std::uint32_t>(codes + 4 * lane) : words[j - 1] >> 4;
    }
  }
  const float own_factor = Code::factor(own_scale);
  constexpr std::uint32_t kCode = (1U << Code::kBits) - 1;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const float factor = __shfl_sync(kAll, own_factor, j / kPer);
    Four four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.of[i] = Code::value(words[j] >> (8 * i) & kCode) * factor;
    float* const y = call.y + rows.first + 128 * j;
    if (call.adds) {
      Four sum = Four::load_whole(y);
      sum.add(four);
      four = sum;
    }
    four.store_whole(y);
  }
}

template <class Code, int kPer>
__global__ void __launch_bounds__(kThreads)
    decode_blocks(DecodeCall call, TileSizes sizes, Blocks blocks) {
  using Scale = typename Code::Scale;
  const Tile tile(sizes);
  if constexpr (kPer > 0) {
    if (tile.values == kUsualTile && is_aligned(call.y + tile.first, 16)) {
      return decode_whole<Code, kPer>(call, tile);
    }
  }
  const auto values = static_cast<int>(tile.values);
  const std::byte* const from = call.bytes + tile.byte;
  const int size = kPer > 0 ? 128 * kPer : blocks.size;
  const int bytes =
      kPer > 0 ? static_cast<int>(sizeof(Scale)) + 16 * kPer * Code::kBits : blocks.bytes;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int at = place_of(j);
    if (at >= values) continue;
    const int block = at / size, in_block = at % size;
    const int count = min(size, values - block * size);
    const std::byte* const block_at = from + block * bytes;
    const float factor = Code::factor(load_number<Scale>(block_at));
    Four four = {};
    if (count == size) {
      const std::uint32_t word = four_codes<Code>(block_at + sizeof(Scale), in_block, size);
#pragma unroll
      for (int i = 0; i < 4; ++i) four.of[i] = Code::value(word >> (8 * i) & 255U) * factor;
    } else {
      for (int i = 0; i < min(4, count - in_block); ++i) {
        four.of[i] =
            Code::value(code_at<Code>(block_at + sizeof(Scale), in_block + i, count)) * factor;
      }
    }
    put(four, call.y + tile.first + at, values - at, call.adds);
  }
}

template <class Name>
Blocks blocks_of_codec(const Name& codec) {
  return {.size = static_cast<int>(codec.block()),
          .bytes = static_cast<int>(codec.block_bytes(codec.block()))};
}

template <class Code, bool kFeedback>
auto encode_kernel(std::int64_t block) {
  return block == 128   ? encode_blocks<Code, kFeedback, 1>
         : block == 256 ? encode_blocks<Code, kFeedback, 2>
                        : encode_blocks<Code, kFeedback, 0>;
}

template <class Code, class Name>
void encode_by(const Name& codec, const EncodeCall& call, Stream& stream) {
  const TileSizes sizes = tile_sizes(codec, call);
  const auto kernel = call.residual != nullptr ? encode_kernel<Code, true>(codec.block())
                                               : encode_kernel<Code, false>(codec.block());
  kernel<<<blocks_of(sizes), kThreads, 0, launch_stream(stream)>>>(call, sizes,
                                                                   blocks_of_codec(codec));
  HEDDLE_CUDA(cudaGetLastError());
}

template <class Code, class Name>
void decode_by(const Name& codec, const DecodeCall& call, Stream& stream) {
  const TileSizes sizes = tile_sizes(codec, call);
  const auto kernel = codec.block() == 128   ? decode_blocks<Code, 1>
                      : codec.block() == 256 ? decode_blocks<Code, 2>
                                             : decode_blocks<Code, 0>;
  kernel<<<blocks_of(sizes), kThreads, 0, launch_stream(stream)>>>(call, sizes,
                                                                   blocks_of_codec(codec));
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace

void encode(const BlockInt& codec, const EncodeCall& call, Stream& stream) {
  codec.bits() == 8 ? encode_by<IntCode<8>>(codec, call, stream)
                    : encode_by<IntCode<4>>(codec, call, stream);
}
void decode(const BlockInt& codec, const DecodeCall& call, Stream& stream) {
  codec.bits() == 8 ? decode_by<IntCode<8>>(codec, call, stream)
                    : decode_by<IntCode<4>>(codec, call, stream);
}
void encode(const Fp8& codec, const EncodeCall& call, Stream& stream) {
  encode_by<Fp8Code>(codec, call, stream);
}
void decode(const Fp8& codec, const DecodeCall& call, Stream& stream) {
  decode_by<Fp8Code>(codec, call, stream);
}
void encode(const E3m0& codec, const EncodeCall& call, Stream& stream) {
  encode_by<E3m0Code>(codec, call, stream);
}
void decode(const E3m0& codec, const DecodeCall& call, Stream& stream) {
  decode_by<E3m0Code>(codec, call, stream);
}

}  // namespace heddle::codec::cuda
