#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "codec/registry.h"
#include "tensor/memory.h"

namespace heddle::codec {

/// Every kind, with parameters other than the usual where these matter.
inline const std::vector<std::string>& all_codecs() {
  static const std::vector<std::string> names = {"bf16",
                                                 "int8",
                                                 "int8:64",
                                                 "int8:8",
                                                 "int4",
                                                 "int4:1024",
                                                 "fp8",
                                                 "fp8:32",
                                                 "e3m0",
                                                 "e3m0:24",
                                                 "sign",
                                                 "topk",
                                                 "topk:3:32",
                                                 "topk:64:64",
                                                 "zfp",
                                                 "zfp:5:1",
                                                 "zfp:16:1",
                                                 "zfp:9:10",
                                                 "zfp:11:1:truncate",
                                                 "zfp:24:33",
                                                 "zfp:32",
                                                 "topk:100:65536",
                                                 "lossless"};
  return names;
}

using Floats = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;

template <class T>
Tensor tensor_of(const std::vector<T>& values) {
  const Tensor t = Memory().alloc({static_cast<std::int64_t>(values.size())}, DTypeOf<T>::value,
                                  MemoryTag::workspace);
  if (!values.empty()) std::memcpy(t.bytes(), values.data(), t.size_bytes());
  return t;
}

template <class T>
std::vector<T> values_of(const Tensor& t) {
  return {t.data<T>(), t.data<T>() + t.count()};
}

struct Encoded {
  Bytes bytes;
  Floats residual;
  std::optional<std::int64_t> bad;
};

struct EncodeOptions {
  const Floats* residual = nullptr;
  std::int64_t piece = 0;
  int threads = 1;
};

/// Encodes into bytes that lie unaligned between guards, which must stay as they are.
inline Encoded encode(const Codec& codec, const Floats& x, const EncodeOptions& options = {}) {
  const auto n = static_cast<std::int64_t>(x.size());
  Stream stream(options.threads);
  const std::int64_t piece = options.piece > 0 ? options.piece : std::max<std::int64_t>(n, 1);
  const auto size = static_cast<std::int64_t>(codec.encoded_bytes(n, piece));
  constexpr std::int64_t kGuard = 3;
  const Tensor room = tensor_of(Bytes(static_cast<std::size_t>(size + 2 * kGuard), 0xa5));
  const Tensor bytes = room.slice(0, kGuard, kGuard + size), bad = tensor_of<std::int64_t>({0});
  const Tensor workspace = tensor_of(Bytes(codec.workspace_bytes(n)));
  const Tensor residual = options.residual == nullptr ? Tensor() : tensor_of(*options.residual);
  codec.encode({.x = tensor_of(x),
                .residual = residual,
                .bytes = bytes,
                .bad = bad,
                .workspace = workspace,
                .piece = options.piece},
               stream);
  const Bytes all = values_of<std::uint8_t>(room);
  for (std::int64_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(all[static_cast<std::size_t>(i)], 0xa5) << codec.name() << " wrote before its bytes";
    EXPECT_EQ(all[static_cast<std::size_t>(kGuard + size + i)], 0xa5)
        << codec.name() << " wrote behind its bytes";
  }
  return {.bytes = values_of<std::uint8_t>(bytes),
          .residual = options.residual == nullptr ? Floats() : values_of<float>(residual),
          .bad = first_bad(bad, stream)};
}

inline Floats decode(const Codec& codec, const Bytes& bytes, std::size_t n, int threads = 1) {
  Stream stream(threads);
  const Tensor y = tensor_of(Floats(n, 777.0F));
  codec.decode(tensor_of(bytes), y, stream);
  return values_of<float>(y);
}

inline Floats decode_add(const Codec& codec, const Bytes& bytes, const Floats& to,
                         int threads = 1) {
  Stream stream(threads);
  const Tensor y = tensor_of(to);
  codec.decode_add(tensor_of(bytes), y, stream);
  return values_of<float>(y);
}

inline Floats round_trip(const Codec& codec, const Floats& x) {
  return decode(codec, encode(codec, x).bytes, x.size());
}

inline Floats gaussian(std::size_t n, std::uint64_t seed, double sigma = 1.0) {
  Floats x(n);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(sigma * random_normal(seed, i));
  }
  return x;
}

/// The norm of what is lost over the norm of the values.
inline double relative_error(const Floats& x, const Floats& y) {
  double lost = 0, whole = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    lost += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    whole += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(lost / whole);
}

inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Values that are hard on some codec, with a name each; all finite.
struct HardInput {
  std::string name;
  Floats x;
};
inline std::vector<HardInput> hard_inputs() {
  using Limits = std::numeric_limits<float>;
  std::vector<HardInput> inputs;
  const auto add = [&](const std::string& name, Floats x) {
    inputs.push_back({name, std::move(x)});
  };
  for (const std::size_t n :
       {0, 1, 2, 3, 5, 7, 8, 9, 15, 17, 63, 65, 127, 128, 129, 1000, 1025, 4095, 4097, 10007}) {
    add("normal " + std::to_string(n), gaussian(n, 100 + n));
  }
  add("zeros", Floats(1500, 0.0F));
  add("minus zeros", Floats(1500, -0.0F));
  add("ones", Floats(1500, 1.0F));
  Floats huge = gaussian(5000, 7, 1e-3);
  huge[1234] = Limits::max();
  huge[4096] = -Limits::max();
  add("one huge value", huge);
  add("largest", Floats(1500, Limits::max()));
  Floats swinging(1500);
  for (std::size_t i = 0; i < swinging.size(); ++i) {
    swinging[i] = random_u64(14, i) % 2 == 0 ? Limits::max() : -Limits::max();
  }
  add("largest of either sign", swinging);
  Floats tiny(3000), mixed(20000), any(20000);
  for (std::size_t i = 0; i < tiny.size(); ++i) {
    tiny[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random_u64(5, i) & 0x807fffffU));
  }
  add("denormals", tiny);
  tiny[77] = 1.0F;
  add("denormals beside one", tiny);
  add("smallest", Floats(300, Limits::denorm_min()));
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    const auto sparse = random_u64(6, i) % 20 != 0;
    mixed[i] = sparse ? 0.0F : static_cast<float>(std::ldexp(random_normal(8, i), -(int)(i % 90)));
  }
  add("mostly zeros of many magnitudes", mixed);
  for (std::size_t i = 0; i < any.size(); ++i) {
    any[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random_u64(9, i)));
    if (!std::isfinite(any[i])) any[i] = 0.5F;
  }
  add("any finite bits", any);
  Floats ties(2048);
  for (std::size_t i = 0; i < ties.size(); ++i)
    ties[i] = static_cast<float>(i % 255) * 0.5F - 63.5F;
  add("ties", ties);
  return inputs;
}

}  // namespace heddle::codec
