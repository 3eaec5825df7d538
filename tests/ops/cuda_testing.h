#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/op_testing.h"
#include "tensor/device.h"

namespace heddle::ops {

/// A test on a GPU, skipped where there is none. Operations are compared with what the CPU computes
/// in double precision from the same inputs (rounded to the type that the GPU gets).
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    gpu_ = std::make_unique<Stream>(1, kGpu);
    memory_ = std::make_unique<Memory>(Memory::Mode::real, kGpu);
  }

  static constexpr Device kGpu{Device::Kind::cuda, 0};
  Stream& gpu() { return *gpu_; }
  Stream& cpu() { return cpu_; }

  Tensor device_empty(const Shape& shape, DType dtype) {
    return memory_->alloc(shape, dtype, MemoryTag::workspace);
  }
  /// For results of libraries and of hardware copies, whose stores initcheck seems not to see:
  /// what nobody wrote is NaN.
  Tensor device_unwritten(const Shape& shape, DType dtype) {
    const Tensor tensor = device_empty(shape, dtype);
    fill(tensor, std::numeric_limits<double>::quiet_NaN(), *gpu_);
    return tensor;
  }

  /// Uniform values that `dtype` can represent, as f64 on the host.
  static Tensor random(const Shape& shape, DType dtype, std::uint64_t seed, double range = 2.0) {
    const Tensor x = random_tensor(shape, DType::f64, seed, range);
    return round_trip(x, dtype);
  }
  static Tensor round_trip(const Tensor& x_f64, DType dtype) {
    Stream stream(1);
    const Tensor low = empty(x_f64.shape(), dtype), back = empty(x_f64.shape(), DType::f64);
    cast(x_f64, low, stream);
    cast(low, back, stream);
    return back;
  }

  /// The values of a host tensor on the device, as `dtype` when they are floats.
  Tensor up(const Tensor& host, DType dtype) {
    Tensor from = host;
    if (is_floating(host.dtype()) && host.dtype() != dtype) {
      from = empty(host.shape(), dtype);
      cast(host, from, cpu_);
    }
    const Tensor to = device_empty(host.shape(), from.dtype());
    copy(from, to, *gpu_);
    return to;
  }
  Tensor up(const Tensor& host) { return up(host, host.dtype()); }

  /// The values of a device tensor on the host: floats as f64.
  Tensor down(const Tensor& device) {
    const Tensor host = empty(device.shape(), device.dtype());
    copy(device, host, *gpu_);
    if (!is_floating(host.dtype()) || host.dtype() == DType::f64) return host;
    const Tensor wide = empty(host.shape(), DType::f64);
    cast(host, wide, cpu_);
    return wide;
  }
  /// Of integers, those of the device and those of the host.
  void expect_same(const Tensor& got, const Tensor& want, const char* what) {
    const Tensor have = down(got);
    EXPECT_TRUE(std::ranges::equal(have.host<std::int32_t>(), want.host<std::int32_t>())) << what;
  }

  /// |got - want| <= tolerance * max(1, |want|) everywhere.
  void expect_near(const Tensor& got, const Tensor& want_f64, double tolerance, const char* what) {
    const auto have = values(down(got)), want = values(want_f64);
    ASSERT_EQ(have.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double allowed = tolerance * std::max(1.0, std::abs(want[i]));
      if (std::abs(have[i] - want[i]) <= allowed) continue;
      FAIL() << fmt::format("{}, element {} of {} {}: {}, not {} within {}", what, i,
                            got.shape().text(), name_of(got.dtype()), have[i], want[i], allowed);
    }
  }

  /// Every value within `tolerance` of the wanted one, relative to the largest (where all should be
  /// 0, to 1e-3).
  void expect_relative(const Tensor& got, const Tensor& want_f64, double tolerance,
                       const char* what) {
    const auto have = values(down(got)), want = values(want_f64);
    double largest = 1e-3, worst = 0.0;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double error = std::abs(have[i] - want[i]) / largest;
      worst = std::isfinite(error) ? std::max(worst, error) : 1e300;
    }
    EXPECT_LT(worst, tolerance) << what;
  }

 private:
  Stream cpu_{2};
  std::unique_ptr<Stream> gpu_;
  std::unique_ptr<Memory> memory_;
};

inline const DType kGpuFloats[] = {DType::f32, DType::bf16};

/// What a result of this type may differ by: bf16 has 8 bits.
inline double tolerance_of(DType dtype, double f32_tolerance) {
  return dtype == DType::f32 ? f32_tolerance : std::max(f32_tolerance, 0.0045);
}

/// How a matrix lies in memory: in one piece; in a wider one, with rows at multiples of 16 bytes;
/// or with rows anywhere.
enum class Lie { contiguous, wide, odd };
inline const Lie kLies[] = {Lie::contiguous, Lie::wide, Lie::odd};

/// A device copy of a host tensor that lies as told, between guards that nobody may touch.
class Lying {
 public:
  Lying(const Tensor& host, DType dtype, Lie lie, Stream& gpu) : gpu_(gpu) {
    before_ = lie == Lie::contiguous ? 0 : lie == Lie::wide ? 8 : 3;
    const std::int64_t after = lie == Lie::contiguous ? 0 : lie == Lie::wide ? 16 : 4;
    Shape shape = host.shape();
    width_ = host.size(-1);
    const std::int64_t odd = lie == Lie::wide ? (8 - width_ % 8) % 8 : 0;
    shape.set(-1, before_ + width_ + odd + after);
    whole_ = Memory(Memory::Mode::real, gpu.device()).alloc(shape, dtype, MemoryTag::workspace);
    fill(whole_, kGuard, gpu);
    view = whole_.slice(host.dims() - 1, before_, before_ + width_);
    Stream cpu(1);
    const Tensor low = empty(host.shape(), dtype);
    cast(host, low, cpu);
    copy(low, view, gpu);
  }
  ~Lying() {
    Stream cpu(1);
    const Tensor host = empty(whole_.shape(), whole_.dtype());
    const Tensor wide = empty(whole_.shape(), DType::f64);
    copy(whole_, host, gpu_);
    cast(host, wide, cpu);
    std::int64_t wrong = 0, i = 0;
    const std::int64_t row = whole_.size(-1);
    for (const double value : wide.host<double>()) {
      const std::int64_t column = i++ % row;
      const bool is_guard = column < before_ || column >= before_ + width_;
      wrong += is_guard && value != kGuard ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0) << "memory around a strided tensor was written";
  }
  Lying(const Lying&) = delete;
  Lying& operator=(const Lying&) = delete;

  Tensor view;

 private:
  static constexpr double kGuard = 12352.0;  // exact in bf16
  Stream& gpu_;
  Tensor whole_;
  std::int64_t before_, width_;
};

}  // namespace heddle::ops
