// Operations on flat tensors, on a GPU: AdamW, SGD, sums, casts, copies, random numbers.
#include <limits>

#include "base/error.h"
#include "ops/adamw.h"
#include "ops/cuda_testing.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/sgd.h"

namespace heddle::ops {
namespace {

class CudaFlat : public OnGpu {};

const std::int64_t kCounts[] = {1, 3, 127, 128, 129, 100003};

TEST_F(CudaFlat, AdamWEqualsTheCpu) {
  for (const std::int64_t count : kCounts) {
    const auto vector = [&](std::uint64_t seed, double range) {
      return random({count}, DType::f32, seed, range);
    };
    const Tensor p = vector(1, 2.0), m = vector(2, 0.1), v = vector(3, 0.1), g = vector(4, 1.0);
    for (double& value : v.host<double>()) value = std::abs(value);
    const Tensor dev_p = up(p, DType::f32), dev_m = up(m, DType::f32), dev_v = up(v, DType::f32);
    const Tensor clip = empty({1}, DType::f32), low = device_empty({count}, DType::bf16);
    set(clip, {0.625});
    const auto args = [&](const Tensor& factor) {
      return AdamWArgs{
          .lr = 0.01, .weight_decay = 0.1, .grad_scale = 0.5, .step = 3, .clip = factor};
    };
    adamw(p, g, m, v, args(clip), cpu());
    AdamWArgs on_device = args(up(clip));
    on_device.p_low = low;
    adamw(dev_p, up(g, DType::f32), dev_m, dev_v, on_device, gpu());
    expect_near(dev_p, p, 1e-6, "p");
    expect_near(dev_m, m, 1e-6, "m");
    expect_near(dev_v, v, 1e-6, "v");
    expect_near(low, round_trip(down(dev_p), DType::bf16), 0.0, "p in bf16");
    set(clip, {std::numeric_limits<double>::quiet_NaN()});
    const Tensor before = down(dev_p);
    adamw(dev_p, up(g, DType::f32), dev_m, dev_v, args(up(clip)), gpu());
    expect_same_bits(down(dev_p), before);
  }
}

TEST_F(CudaFlat, SgdEqualsTheCpu) {
  for (const std::int64_t count : kCounts) {
    const auto vector = [&](std::uint64_t seed) { return random({count}, DType::f32, seed); };
    for (const bool has_momentum : {false, true}) {
      const Tensor p = vector(1), g = vector(2), m = vector(3), clip = empty({1}, DType::f32);
      set(clip, {0.625});
      const Tensor dev_p = up(p, DType::f32), dev_g = up(g, DType::f32), dev_m = up(m, DType::f32);
      const Tensor low = device_empty({count}, DType::bf16);
      const auto args = [&](const Tensor& factor, const Tensor& guard) {
        return SgdArgs{.lr = 0.1,
                       .momentum = has_momentum ? 0.9 : 0.0,
                       .nesterov = has_momentum,
                       .weight_decay = 0.1,
                       .clip = factor,
                       .guard = guard};
      };
      sgd(p, g, has_momentum ? m : Tensor(), args(clip, {}), cpu());
      SgdArgs on_device = args(up(clip), {});
      on_device.p_low = low;
      sgd(dev_p, dev_g, has_momentum ? dev_m : Tensor(), on_device, gpu());
      expect_near(dev_p, p, 1e-6, "p");
      expect_near(dev_m, m, 1e-6, "m");
      expect_near(low, round_trip(down(dev_p), DType::bf16), 0.0, "p in bf16");
      set(clip, {std::numeric_limits<double>::quiet_NaN()});
      const Tensor before = down(dev_p);
      sgd(dev_p, dev_g, has_momentum ? dev_m : Tensor(), args({}, up(clip)), gpu());
      expect_same_bits(down(dev_p), before);
    }
  }
}

TEST_F(CudaFlat, RunningMeansAndDivisionsByNormsEqualTheCpus) {
  for (const std::int64_t count : kCounts) {
    for (const bool nesterov : {false, true}) {
      const Tensor g = random({count}, DType::f32, 1), m = random({count}, DType::f32, 2);
      const Tensor dev_g = up(g, DType::f32), dev_m = up(m, DType::f32);
      const Tensor clip = empty({1}, DType::f32), sum = empty({1}, DType::f64);
      set(clip, {0.625});
      set(sum, {9.0});
      running_mean(g, m, {.momentum = 0.9, .nesterov = nesterov, .clip = clip}, cpu());
      running_mean(dev_g, dev_m, {.momentum = 0.9, .nesterov = nesterov, .clip = up(clip)}, gpu());
      expect_near(dev_g, g, 1e-6, "g");
      expect_near(dev_m, m, 1e-6, "m");
      divide_by_norm(g, sum, 1e-7, cpu());
      divide_by_norm(dev_g, up(sum), 1e-7, gpu());
      expect_near(dev_g, g, 1e-6, "g over its norm");
    }
  }
}

TEST_F(CudaFlat, SumsAreExactEnoughAndTheSameEveryTime) {
  for (const std::int64_t count : kCounts) {
    const Tensor x = random({count + 1}, DType::f32, 1);
    const Tensor dev_x = up(x, DType::f32);
    for (const std::int64_t begin : {0, 1}) {  // aligned and not
      const double want = sum_of_squares(x.slice(0, begin, count + 1), cpu());
      const double got = sum_of_squares(dev_x.slice(0, begin, count + 1), gpu());
      EXPECT_NEAR(got, want, 1e-12 * want);
      EXPECT_EQ(got, sum_of_squares(dev_x.slice(0, begin, count + 1), gpu()));
    }
    const Tensor start = empty({1}, DType::f64);
    set(start, {2.0});
    const Tensor sum = up(start), squares = up(start), dev_doubles = up(x);
    add_sum(x, start, cpu());
    add_sum(dev_doubles, sum, gpu());
    add_sum_of_squares(dev_x, squares, gpu());
    EXPECT_NEAR(values(down(sum))[0], values(start)[0], 1e-9);
    EXPECT_NEAR(values(down(squares))[0], 2.0 + sum_of_squares(x, cpu()), 1e-9);
  }
}

TEST_F(CudaFlat, ClipFactorEqualsTheCpu) {
  const Tensor sums = empty({2}, DType::f64), factor = empty({1}, DType::f32);
  const Tensor dev_factor = device_empty({1}, DType::f32);
  for (const double square : {25.0, 0.25, std::numeric_limits<double>::infinity()}) {
    for (const double limit : {0.0, 1.0}) {
      set(sums, {square, 1.0});
      clip_factor(sums, limit, factor, cpu());
      clip_factor(up(sums), limit, dev_factor, gpu());
      const double got = values(down(dev_factor))[0], want = values(factor)[0];
      EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << square << " " << limit;
    }
  }
}

TEST_F(CudaFlat, FindsTheFirstThatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Tensor x = random({100003}, dtype, 1);
    const Tensor seven = empty({1}, DType::f64);
    set(seven, {7.0});
    const Tensor mark = up(seven);
    EXPECT_EQ(first_non_finite(up(x, dtype), gpu()), -1);
    mark_non_finite(up(x, dtype), mark, gpu());
    EXPECT_EQ(values(down(mark))[0], 7.0);
    put(x, 100002, nan);
    EXPECT_EQ(first_non_finite(up(x, dtype), gpu()), 100002);
    mark_non_finite(up(x, dtype), mark, gpu());
    EXPECT_TRUE(std::isnan(values(down(mark))[0]));
    put(x, 777, -std::numeric_limits<double>::infinity());
    put(x, 778, nan);
    EXPECT_EQ(first_non_finite(up(x, dtype), gpu()), 777);
  }
}

TEST_F(CudaFlat, CastsAsTheCpu) {
  for (const DType from : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const DType to : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      for (const std::int64_t count : kCounts) {
        const Tensor x = random({count}, from, 1, 3.0), dev_y = device_empty({count}, to);
        cast(up(x, from), dev_y, gpu());
        expect_near(dev_y, round_trip(x, to), 0.0, "cast");
      }
    }
  }
}

TEST_F(CudaFlat, RandomNumbersAreTheCpus) {
  for (const std::int64_t count : kCounts) {
    const Tensor y = empty({count}, DType::f32), dev_y = device_empty({count}, DType::f32);
    const std::uint64_t first = (std::uint64_t{1} << 33) + 5;
    fill_normal(y, 42, first, 0.02, cpu());
    fill_normal(dev_y, 42, first, 0.02, gpu());
    const auto want = values(y), got = values(down(dev_y));
    std::int64_t different = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 4e-9);  // logarithm and cosine are not the C library's
      different += got[i] != want[i] ? 1 : 0;
    }
    EXPECT_LE(different, count / 1000);
  }
}

TEST_F(CudaFlat, DropsWhatTheCpuDrops) {
  for (const std::int64_t width : {1, 31, 640, 4097}) {
    constexpr std::int64_t kRows = 70;
    const Tensor x = random_tensor({kRows, width + 3}, DType::f32, 1).slice(1, 2, 2 + width);
    const Tensor numbers = empty({kRows}, DType::i64);
    for (std::int64_t t = 0; t < kRows; ++t)
      numbers.data<std::int64_t>()[t] = 1000003 * (t % 9) + t;
    for (const bool has_numbers : {false, true}) {
      DropoutMask mask{.key = 99,
                       .rate = 0.4,
                       .first_row = 0x7ffffffUL,
                       .first_column = 5,
                       .columns = width + 9};
      if (has_numbers) mask.rows_T = numbers;
      DropoutMask dev_mask = mask;
      if (has_numbers) dev_mask.rows_T = up(numbers);
      const Tensor y = empty({kRows, width}, DType::f32);
      const Tensor dev_x = up(x), dev_y = device_empty({kRows, width}, DType::f32);
      dropout(x, mask, y, cpu());
      dropout(dev_x, dev_mask, dev_y, gpu());
      EXPECT_EQ(values(down(dev_y)), values(y));
      add_dropout(x, mask, y, cpu());
      add_dropout(dev_x, dev_mask, dev_y, gpu());
      const auto want = values(y), got = values(down(dev_y));
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6);
    }
  }
}

TEST_F(CudaFlat, CopiesAnyTypeBetweenAnyStridesAndDevices) {
  for (const DType dtype : {DType::u8, DType::u16, DType::i32, DType::i64}) {
    for (const std::int64_t width : {1, 3, 8, 129}) {
      const auto element = static_cast<std::int64_t>(size_of(dtype));
      const Tensor host = empty({3, 5, 2, width + 7}, dtype), back = empty(host.shape(), dtype);
      for (std::int64_t i = 0; i < host.count() * element; ++i) {
        host.bytes()[i] = static_cast<std::byte>(random_u64(1, static_cast<std::uint64_t>(i)));
        back.bytes()[i] = std::byte{0};
      }
      const auto view = [&](const Tensor& t) { return t.slice(3, 4, 4 + width).slice(1, 1, 4); };
      const Tensor a = device_empty(host.shape(), dtype), b = device_empty(host.shape(), dtype);
      copy(host, a, gpu());
      copy(back, b, gpu());
      copy(view(a), view(b), gpu());
      copy(view(b), view(back), gpu());
      const Tensor want = empty(host.shape(), dtype);
      std::memset(want.bytes(), 0, want.size_bytes());
      copy(view(host), view(want), cpu());
      expect_same_bits(back, want);
      expect_same_bits(down(b), want);
    }
  }
}

TEST_F(CudaFlat, FillsIntegers) {
  const Tensor y = device_empty({3, 7}, DType::i32);
  fill(y, 0.0, gpu());
  fill(y.slice(1, 2, 5), -100.0, gpu());
  const Tensor host = down(y);
  for (std::int64_t i = 0; i < 21; ++i) {
    EXPECT_EQ(host.data<std::int32_t>()[i], i % 7 >= 2 && i % 7 < 5 ? -100 : 0);
  }
}

TEST_F(CudaFlat, OperandsOnTheWrongDeviceAreRefused) {
  const Tensor host = empty({4}, DType::f32);
  EXPECT_THROW(scale(host, 2.0, gpu()), Error);
}

}  // namespace
}  // namespace heddle::ops
