#include "ops/cast.h"

#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

/// Floats of every exponent, ties between neighbours of each 16-bit type, and the special ones.
Tensor hard_floats() {
  std::vector<float> list = {0.0F,
                             -0.0F,
                             65504.0F,
                             65519.9F,
                             65520.0F,
                             -65536.0F,
                             3.4e38F,
                             1e-45F,
                             std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity()};
  for (std::uint64_t i = 0; i < 40000; ++i) {
    auto bits = static_cast<std::uint32_t>(random_u64(3, i));
    if (i % 4 == 1) bits = (bits & 0xffff0000U) | 0x8000U;
    if (i % 4 == 2) bits = (bits & 0xffffe000U) | 0x1000U;
    if (i % 8 == 3) bits = (bits & 0x81ffffffU) | 0x38000000U;  // near the range of half precision
    const auto value = std::bit_cast<float>(bits);
    if (!std::isnan(value)) list.push_back(value);
  }
  const Tensor t = empty({static_cast<std::int64_t>(list.size())}, DType::f32);
  std::copy(list.begin(), list.end(), t.data<float>());
  return t;
}

Tensor cast_to(DType dtype, const Tensor& x) {
  return on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
    const Tensor y = empty(x.shape(), dtype);
    cast(x, y, stream);
    return {y};
  })[0];
}

TEST(Cast, FromFloatToSixteenBitsRoundsLikeTheScalarConversion) {
  const Tensor x = hard_floats();
  const Tensor b = cast_to(DType::bf16, x), h = cast_to(DType::f16, x);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const float from = x.data<float>()[i];
    ASSERT_EQ(b.data<BFloat16>()[i].bits, to_bfloat16(from).bits) << from;
    ASSERT_EQ(h.data<Float16>()[i].bits, to_float16(from).bits) << from;
  }
}

TEST(Cast, FromSixteenBitsIsExactForAllValues) {
  const Tensor b = empty({65536}, DType::bf16), h = empty({65536}, DType::f16);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    b.data<BFloat16>()[bits].bits = static_cast<std::uint16_t>(bits);
    h.data<Float16>()[bits].bits = static_cast<std::uint16_t>(bits);
  }
  for (const Tensor& x : {b, h}) {
    const Tensor f = cast_to(DType::f32, x), d = cast_to(DType::f64, x);
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const float want = x.dtype() == DType::bf16 ? to_float(x.data<BFloat16>()[i])
                                                  : to_float(x.data<Float16>()[i]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(f.data<float>()[i]) && std::isnan(d.data<double>()[i]));
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(f.data<float>()[i]),
                  std::bit_cast<std::uint32_t>(want));
        ASSERT_EQ(d.data<double>()[i], static_cast<double>(want));
      }
    }
    const Tensor back = cast_to(x.dtype(), f);
    for (std::int64_t i = 0; i < x.count(); ++i) {
      if (!std::isnan(f.data<float>()[i])) {
        ASSERT_EQ(reinterpret_cast<std::uint16_t*>(back.bytes())[i],
                  reinterpret_cast<std::uint16_t*>(x.bytes())[i]);
      }
    }
  }
}

TEST(Cast, KeepsNaN) {
  const Tensor x = empty({33}, DType::f32);
  for (std::int64_t i = 0; i < 33; ++i) {
    x.data<float>()[i] = std::bit_cast<float>(i % 2 == 0 ? 0x7f800001U : 0xffffffffU);
  }
  const Tensor b = cast_to(DType::bf16, x), h = cast_to(DType::f16, x), d = cast_to(DType::f64, x);
  const Tensor through_b = cast_to(DType::bf16, d), through_h = cast_to(DType::f16, d);
  for (std::int64_t i = 0; i < 33; ++i) {
    EXPECT_TRUE(std::isnan(to_float(b.data<BFloat16>()[i])));
    EXPECT_TRUE(std::isnan(to_float(h.data<Float16>()[i])));
    EXPECT_TRUE(std::isnan(d.data<double>()[i]));
    EXPECT_TRUE(std::isnan(to_float(through_b.data<BFloat16>()[i])));
    EXPECT_TRUE(std::isnan(to_float(through_h.data<Float16>()[i])));
  }
}

TEST(Cast, BetweenFloatAndDoubleIsTheLanguagesConversion) {
  const Tensor x = random_tensor({100003}, DType::f64, 1, 1e3);
  const Tensor f = cast_to(DType::f32, x), d = cast_to(DType::f64, f);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    ASSERT_EQ(f.data<float>()[i], static_cast<float>(x.data<double>()[i]));
    ASSERT_EQ(d.data<double>()[i], static_cast<double>(f.data<float>()[i]));
  }
}

TEST(Cast, FromDoubleRoundsOnce) {
  // Just above, at and below a tie of the 16-bit types, by less than float can tell.
  const double tiny = 0x1.0p-40;
  const Tensor x = empty({12}, DType::f64);
  const double bf16_tie = 1.0 + 0x1.0p-8, f16_tie = 1.0 + 0x1.0p-11;
  set(x, {bf16_tie, bf16_tie + tiny, bf16_tie - tiny, -bf16_tie - tiny, f16_tie, f16_tie + tiny,
          f16_tie - tiny, -f16_tie - tiny, 65520.0 - 0x1.0p-20, 65520.0, 1e300, -1e-300});
  const Tensor b = cast_to(DType::bf16, x), h = cast_to(DType::f16, x);
  const auto bf16 = [&](int i) { return to_float(b.data<BFloat16>()[i]); };
  const auto f16 = [&](int i) { return to_float(h.data<Float16>()[i]); };
  EXPECT_EQ(bf16(0), 1.0F);
  EXPECT_EQ(bf16(1), 1.0F + 0x1.0p-7F);
  EXPECT_EQ(bf16(2), 1.0F);
  EXPECT_EQ(bf16(3), -1.0F - 0x1.0p-7F);
  EXPECT_EQ(f16(4), 1.0F);
  EXPECT_EQ(f16(5), 1.0F + 0x1.0p-10F);
  EXPECT_EQ(f16(6), 1.0F);
  EXPECT_EQ(f16(7), -1.0F - 0x1.0p-10F);
  EXPECT_EQ(f16(8), 65504.0F);
  EXPECT_TRUE(std::isinf(f16(9)) && std::isinf(f16(10)) && std::isinf(bf16(10)));
  EXPECT_EQ(b.data<BFloat16>()[11].bits, 0x8000U);
  EXPECT_EQ(h.data<Float16>()[11].bits, 0x8000U);
}

TEST(Cast, BetweenTheSixteenBitTypesGoesThroughTheValue) {
  const Tensor h = cast_to(DType::f16, hard_floats()), b = cast_to(DType::bf16, h);
  for (std::int64_t i = 0; i < h.count(); ++i) {
    ASSERT_EQ(b.data<BFloat16>()[i].bits, to_bfloat16(to_float(h.data<Float16>()[i])).bits);
  }
  const Tensor back = cast_to(DType::f16, b), same = cast_to(DType::f16, h);
  expect_same_bits(same, h);
  for (std::int64_t i = 0; i < h.count(); ++i) {
    ASSERT_EQ(back.data<Float16>()[i].bits, to_float16(to_float(b.data<BFloat16>()[i])).bits);
  }
}

TEST(Cast, OfBytesTakesAnyAlignment) {
  const Tensor x = hard_floats(), want = cast_to(DType::bf16, x);
  const auto count = static_cast<std::size_t>(x.count());
  std::vector<std::byte> from(x.size_bytes() + 3), to(want.size_bytes() + 1);
  std::memcpy(from.data() + 3, x.bytes(), x.size_bytes());
  cast_bytes(from.data() + 3, DType::f32, to.data() + 1, DType::bf16, x.count());
  EXPECT_EQ(std::memcmp(to.data() + 1, want.bytes(), count * sizeof(BFloat16)), 0);
  const Tensor f64 = cast_to(DType::f64, want);
  std::vector<std::byte> wide(f64.size_bytes() + 5);
  cast_bytes(to.data() + 1, DType::bf16, wide.data() + 5, DType::f64, x.count());
  EXPECT_EQ(std::memcmp(wide.data() + 5, f64.bytes(), f64.size_bytes()), 0);
}

TEST(Cast, RefusesIntegersAndStridedTensors) {
  Stream stream(1);
  const Tensor f = random_tensor({4, 4}, DType::f32, 1);
  EXPECT_THROW(cast(f, empty({4, 4}, DType::i32), stream), Error);
  EXPECT_THROW(cast(f.slice(1, 0, 2), empty({4, 2}, DType::bf16), stream), Error);
  EXPECT_THROW(cast(f, empty({16}, DType::bf16), stream), Error);
}

}  // namespace
}  // namespace heddle::ops
