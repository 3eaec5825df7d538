#include "comm/threads/combine_ranks.h"

#include <algorithm>
#include <type_traits>

#include "base/check.h"

namespace heddle {
namespace {

/// Elements combined at a time: small enough for the first-level cache.
constexpr std::int64_t kBlock = 1024;

template <class T>
struct SumIn {
  using type = T;
};
template <>
struct SumIn<BFloat16> {
  using type = float;
};
template <>
struct SumIn<Float16> {
  using type = float;
};

template <class T>
typename SumIn<T>::type widen(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    return to_float(value);
  }
}

template <class T>
T narrow(typename SumIn<T>::type value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(value);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(value);
  } else {
    return value;
  }
}

template <ReduceOp op, class T>
T combine(T a, T b) {
  if constexpr (op == ReduceOp::sum) {
    return static_cast<T>(a + b);
  } else {
    return b > a || b != b ? b : a;  // NaN stays, whichever rank has it
  }
}

template <class T, ReduceOp op>
void combine_block(std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
                   std::int64_t begin, std::int64_t count) {
  using Wide = typename SumIn<T>::type;
  Wide total[kBlock];
  const T* const first = reinterpret_cast<const T*>(inputs[0]) + begin;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) total[i] = widen(first[i]);
  for (std::byte* const input : inputs.subspan(1)) {
    const T* const x = reinterpret_cast<const T*>(input) + begin;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) total[i] = combine<op>(total[i], widen(x[i]));
  }
  for (std::byte* const output : outputs) {
    T* const y = reinterpret_cast<T*>(output) + begin;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) y[i] = narrow<T>(total[i]);
  }
}

template <class T>
void combine_typed(ReduceOp op, std::span<std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::int64_t begin, std::int64_t end) {
  for (; begin < end; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, end - begin);
    if (op == ReduceOp::sum) {
      combine_block<T, ReduceOp::sum>(inputs, outputs, begin, count);
    } else {
      combine_block<T, ReduceOp::max>(inputs, outputs, begin, count);
    }
  }
}

}  // namespace

void combine_ranks(DType dtype, ReduceOp op, std::span<std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::int64_t begin, std::int64_t end) {
  switch (dtype) {
    case DType::f32: return combine_typed<float>(op, inputs, outputs, begin, end);
    case DType::f64: return combine_typed<double>(op, inputs, outputs, begin, end);
    case DType::bf16: return combine_typed<BFloat16>(op, inputs, outputs, begin, end);
    case DType::f16: return combine_typed<Float16>(op, inputs, outputs, begin, end);
    case DType::i32: return combine_typed<std::int32_t>(op, inputs, outputs, begin, end);
    case DType::i64: return combine_typed<std::int64_t>(op, inputs, outputs, begin, end);
    default: HEDDLE_CHECK(false, "{} cannot be reduced", name_of(dtype));
  }
}

}  // namespace heddle
