#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace heddle {

enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8, u16, u32 };

std::size_t size_of(DType dtype);
/// "f32", "bf16", ...: the spelling of run files and reports.
std::string_view name_of(DType dtype);
bool is_floating(DType dtype);
/// What goes with values of a floating dtype and must be more exact: row statistics, gradients of
/// parameters, optimizer state. f64 for f64, f32 for all others.
DType statistics_of(DType dtype);

/// Storage types for the 16-bit floats; arithmetic is done after a cast (ops/cast.h).
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

float to_float(BFloat16 value);
float to_float(Float16 value);
/// Round to nearest even; NaN stays NaN.
BFloat16 to_bfloat16(float value);
Float16 to_float16(float value);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<std::uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct DTypeOf<std::uint32_t> {
  static constexpr DType value = DType::u32;
};

}  // namespace heddle
