#include "ops/rope.h"

#include "base/error.h"
#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

constexpr std::int64_t kPositions = 50;

struct Tables {
  Tables(std::int64_t half, DType dtype)
      : cosine(empty({kPositions, half}, dtype)), sine(empty({kPositions, half}, dtype)) {
    for (std::int64_t p = 0; p < kPositions; ++p) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p) / std::pow(10.0, static_cast<double>(i));
        put(cosine, p * half + i, std::cos(angle));
        put(sine, p * half + i, std::sin(angle));
      }
    }
  }
  Tensor cosine, sine;
};

Tensor positions(std::int64_t batch, std::int64_t sequence) {
  const Tensor t = empty({batch, sequence}, DType::i32);
  for (std::int64_t i = 0; i < t.count(); ++i) {
    t.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7 % kPositions);
  }
  return t;
}

void check_rotation(RopePairs pairs) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t half : {1, 3, 16, 127}) {
      for (const std::int64_t rest : {0, 5}) {
        const std::int64_t batch = 2, sequence = 33, heads = 3, width = 2 * half + rest;
        const Padded from(random_tensor({batch, sequence, heads, width}, dtype, 1));
        const Tables tables(half, dtype);
        const Tensor at = positions(batch, sequence);
        auto want = values(from.view);
        for (std::int64_t row = 0; row < batch * sequence * heads; ++row) {
          const std::int64_t p = at.data<std::int32_t>()[row / heads];
          double* const x = want.data() + row * width;
          for (std::int64_t i = 0; i < half; ++i) {
            const double c = get(tables.cosine, p * half + i), s = get(tables.sine, p * half + i);
            const bool beside = pairs == RopePairs::neighbours;
            double &low = x[beside ? 2 * i : i], &high = x[beside ? 2 * i + 1 : i + half];
            const double turned = low * c - high * s;
            high = high * c + low * s;
            low = turned;
          }
        }
        const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
          const Padded x(from.view);
          rope(x.view, at, tables.cosine, tables.sine, pairs, false, stream);
          return {copy_of(x.view)};
        });
        expect_close(got[0], want, 1e-6, 1e-15);
      }
    }
  }
}

TEST(Rope, RotatesPairsAndLeavesTheRestAlone) { check_rotation(RopePairs::halves); }

TEST(Rope, RotatesNeighboursAndLeavesTheRestAlone) { check_rotation(RopePairs::neighbours); }

void check_inverse(RopePairs pairs) {
  Stream stream(2);
  for (const DType dtype : kFloats) {
    const Tensor fused = random_tensor({2, 33, 3 * 4 * 16}, dtype, 1);
    const Tensor x = fused.slice(2, 64, 128).view({2, 33, 4, 16});
    const auto before = values(fused);
    const Tables tables(8, dtype);
    rope(x, positions(2, 33), tables.cosine, tables.sine, pairs, false, stream);
    EXPECT_NE(values(fused), before);
    rope(x, positions(2, 33), tables.cosine, tables.sine, pairs, true, stream);
    expect_close(fused, before, 1e-6, 1e-15);
  }
}

TEST(Rope, InverseUndoesTheRotation) {
  check_inverse(RopePairs::halves);
  check_inverse(RopePairs::neighbours);
}

TEST(Rope, RefusesPositionsOutsideTheTable) {
  Stream stream(1);
  const Tables tables(4, DType::f32);
  const Tensor x = random_tensor({1, 1, 1, 8}, DType::f32, 1), at = empty({1, 1}, DType::i32);
  for (const std::int32_t bad : {-1, static_cast<std::int32_t>(kPositions)}) {
    at.data<std::int32_t>()[0] = bad;
    EXPECT_THROW(rope(x, at, tables.cosine, tables.sine, RopePairs::halves, false, stream), Error);
  }
}

}  // namespace
}  // namespace heddle::ops
