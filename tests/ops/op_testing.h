#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "base/rng.h"
#include "tensor/memory.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

inline const DType kFloats[] = {DType::f32, DType::f64};

/// Sizes around vector lengths, and one that is large enough for several threads.
struct Size {
  std::int64_t rows, columns;
};
inline const Size kSizes[] = {{1, 1},   {3, 1},   {1, 3},    {3, 127},  {127, 3},
                              {1, 129}, {129, 1}, {127, 64}, {300, 259}};

inline Tensor empty(const Shape& shape, DType dtype) {
  return Memory().alloc(shape, dtype, MemoryTag::workspace);
}

inline double get(const Tensor& t, std::int64_t offset) {
  return t.dtype() == DType::f32 ? static_cast<double>(t.data<float>()[offset])
                                 : t.data<double>()[offset];
}

inline void put(const Tensor& t, std::int64_t offset, double value) {
  if (t.dtype() == DType::f32) {
    t.data<float>()[offset] = static_cast<float>(value);
  } else {
    t.data<double>()[offset] = value;
  }
}

/// Calls body(offset) for every element of an f32 or f64 tensor, in row-major order.
inline void for_elements(const Tensor& t, const std::function<void(std::int64_t)>& body) {
  const std::function<void(int, std::int64_t)> walk = [&](int dim, std::int64_t offset) {
    if (dim == t.dims()) return body(offset);
    for (std::int64_t i = 0; i < t.size(dim); ++i) walk(dim + 1, offset + i * t.stride(dim));
  };
  walk(0, 0);
}

inline std::vector<double> values(const Tensor& t) {
  std::vector<double> result;
  for_elements(t, [&](std::int64_t offset) { result.push_back(get(t, offset)); });
  return result;
}

inline void set(const Tensor& t, const std::vector<double>& from) {
  std::size_t i = 0;
  for_elements(t, [&](std::int64_t offset) { put(t, offset, from[i++]); });
}

/// Uniform values in [-range, range], a function of the seed.
inline Tensor random_tensor(const Shape& shape, DType dtype, std::uint64_t seed,
                            double range = 2.0) {
  const Tensor t = empty(shape, dtype);
  std::uint64_t i = 0;
  for_elements(t, [&](std::int64_t offset) {
    put(t, offset, range * (2.0 * random_uniform(seed, i++) - 1.0));
  });
  return t;
}

inline Tensor copy_of(const Tensor& t) {
  const Tensor result = empty(t.shape(), t.dtype());
  set(result, values(t));
  return result;
}

inline Tensor ids(const std::vector<std::int32_t>& from) {
  const Tensor t = empty({static_cast<std::int64_t>(from.size())}, DType::i32);
  std::copy(from.begin(), from.end(), t.data<std::int32_t>());
  return t;
}

/// A copy whose rows lie apart in memory, unaligned, between guards that nobody may touch.
class Padded {
 public:
  explicit Padded(const Tensor& from) {
    Shape wide = from.shape();
    wide.set(-1, from.size(-1) + 7);
    whole_ = empty(wide, from.dtype());
    set(whole_, std::vector<double>(static_cast<std::size_t>(whole_.count()), kGuard));
    view = whole_.slice(from.dims() - 1, 3, 3 + from.size(-1));
    set(view, values(from));
  }
  ~Padded() {
    std::int64_t guards = 0;
    const std::int64_t width = whole_.size(-1);
    for (std::int64_t i = 0; i < whole_.count(); ++i) {
      const std::int64_t column = i % width;
      if (column < 3 || column >= width - 4) guards += get(whole_, i) == kGuard ? 1 : 0;
    }
    EXPECT_EQ(guards, whole_.count() / width * 7) << "memory around a strided tensor was written";
  }
  Padded(const Padded&) = delete;
  Padded& operator=(const Padded&) = delete;

  Tensor view;

 private:
  static constexpr double kGuard = 12345.0;
  Tensor whole_;
};

/// |got - want| <= tolerance * max(1, |want|) everywhere.
inline void expect_close(const Tensor& got, const std::vector<double>& want, double f32_tolerance,
                         double f64_tolerance) {
  const double tolerance = got.dtype() == DType::f32 ? f32_tolerance : f64_tolerance;
  const auto have = values(got);
  ASSERT_EQ(have.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(have[i], want[i], tolerance * std::max(1.0, std::abs(want[i])))
        << "element " << i << " of " << got.shape().text() << " " << name_of(got.dtype());
  }
}

inline void expect_same_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.shape(), b.shape());
  ASSERT_EQ(std::memcmp(a.bytes(), b.bytes(), a.size_bytes()), 0);
}

/// Calls compute(stream), which returns fresh contiguous results, on 1, 2 and 4 threads, demands
/// that they agree to the bit, and returns them.
inline std::vector<Tensor> on_any_threads(
    const std::function<std::vector<Tensor>(Stream&)>& compute) {
  Stream one(1);
  const auto first = compute(one);
  for (const int threads : {2, 4}) {
    Stream stream(threads);
    const auto again = compute(stream);
    for (std::size_t i = 0; i < first.size(); ++i) expect_same_bits(first[i], again[i]);
  }
  return first;
}

}  // namespace heddle::ops
