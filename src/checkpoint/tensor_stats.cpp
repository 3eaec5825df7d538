#include "checkpoint/tensor_stats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"

namespace heddle {
namespace {

template <class T>
double as_double(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(value);
  } else {
    return static_cast<double>(to_float(value));
  }
}

template <class T>
void widen(const std::byte* from, std::span<double> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = as_double(value);
  }
}

void to_doubles(const std::byte* from, DType dtype, std::span<double> to) {
  switch (dtype) {
    case DType::f32: return widen<float>(from, to);
    case DType::f64: return widen<double>(from, to);
    case DType::bf16: return widen<BFloat16>(from, to);
    case DType::f16: return widen<Float16>(from, to);
    case DType::i32: return widen<std::int32_t>(from, to);
    case DType::i64: return widen<std::int64_t>(from, to);
    case DType::u8: return widen<std::uint8_t>(from, to);
    case DType::u16: return widen<std::uint16_t>(from, to);
    case DType::u32: return widen<std::uint32_t>(from, to);
  }
}

}  // namespace

double TensorStats::rms() const {
  return finite() > 0 ? std::sqrt(sum_of_squares / static_cast<double>(finite())) : 0.0;
}

void TensorStats::add(std::span<const double> values) {
  for (const double value : values) {
    ++count;
    if (!std::isfinite(value)) {
      ++(std::isnan(value) ? nan : inf);
      continue;
    }
    const bool is_first = finite() == 1;
    min = is_first ? value : std::min(min, value);
    max = is_first ? value : std::max(max, value);
    sum += value;
    sum_of_squares += value * value;
  }
}

void for_each_piece(std::span<const std::byte> bytes, DType dtype,
                    const std::function<void(std::span<const double>)>& f) {
  const std::size_t element = size_of(dtype);
  const std::size_t count = bytes.size() / element;
  std::vector<double> values(std::min<std::size_t>(count, kPieceElements));
  for (std::size_t at = 0; at < count; at += values.size()) {
    const std::span<double> piece(values.data(), std::min(values.size(), count - at));
    to_doubles(bytes.data() + at * element, dtype, piece);
    f(piece);
  }
}

TensorStats stats_of(std::span<const std::byte> bytes, DType dtype) {
  TensorStats stats;
  for_each_piece(bytes, dtype, [&](std::span<const double> values) { stats.add(values); });
  return stats;
}

TensorDifference difference_of(std::span<const std::byte> bytes, DType dtype,
                               std::span<const std::byte> reference, DType reference_dtype) {
  HEDDLE_CHECK(bytes.size() / size_of(dtype) == reference.size() / size_of(reference_dtype),
               "comparison of tensors of different sizes");
  TensorDifference difference;
  double squares = 0, reference_squares = 0;
  std::vector<double> others(kPieceElements);
  std::size_t at = 0;
  for_each_piece(bytes, dtype, [&](std::span<const double> values) {
    const std::span<double> other(others.data(), values.size());
    to_doubles(reference.data() + at * size_of(reference_dtype), reference_dtype, other);
    at += values.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double a = values[i], b = other[i];
      if (a == b || (std::isnan(a) && std::isnan(b))) {
        if (std::isfinite(b)) reference_squares += b * b;
        continue;
      }
      const double gap = std::isfinite(a) && std::isfinite(b)
                             ? std::abs(a - b)
                             : std::numeric_limits<double>::infinity();
      difference.max_abs = std::max(difference.max_abs, gap);
      squares += gap * gap;
      if (std::isfinite(b)) reference_squares += b * b;
    }
  });
  if (squares > 0) difference.relative = std::sqrt(squares / reference_squares);
  return difference;
}

}  // namespace heddle
