#include "nn/joint_norm.h"

#include <gtest/gtest.h>

#include "comm/threads/thread_world.h"
#include "nn/layer_testing.h"
#include "ops/elementwise.h"
#include "ops/norm.h"

namespace heddle {
namespace {

constexpr std::int64_t kB = 2, kS = 3, kTokens = kB * kS;
constexpr double kEps = 1e-3;

/// Two norms of the same tokens, of other widths: q and k.
struct Whole {
  std::vector<double> y, dx;
};

Whole whole_norm(const Tensor& x, const Tensor& dy, const Tensor& weight, Memory& memory,
                 Stream& stream) {
  const Tensor y = memory.zeros(x.shape(), DType::f64, MemoryTag::activations),
               dx = memory.zeros(x.shape(), DType::f64, MemoryTag::activations),
               rstd = memory.zeros({kTokens}, DType::f64, MemoryTag::activations);
  ops::rms_norm_forward(x, weight, kEps, y, rstd, stream);
  ops::rms_norm_backward_input(dy, x, weight, rstd, dx, stream);
  return {values_of(y), values_of(dx)};
}

/// Ranks have stretches of two rows each; of the second, `copies` neighbours have the same one.
void expect_as_whole(int ranks, int copies) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, " << copies << " copies");
  run_ranks(ranks, [&](World& world) {
    Memory memory;
    Stream stream(1);
    const MicroBatch batch;
    Ctx ctx{.stream = stream, .memory = memory, .batch = batch};
    std::vector<JointNorm::Rows> rows;
    std::vector<JointNorm::Gradients> gradients;
    std::vector<Whole> expected;
    std::vector<std::int64_t> begins, widths;
    for (const std::uint64_t seed : {1, 2}) {
      const std::int64_t apart = seed == 1 ? ranks : ranks / copies, own = seed == 1 ? 5 : 4;
      const std::int64_t at = world.rank() * apart / ranks * own, width = own * apart;
      const Tensor x = uniform({kB, kS, 1, width}, 2.0, seed, memory),
                   dy = uniform({kB, kS, 1, width}, 1.0, seed + 10, memory),
                   weight = uniform({width}, 1.0, seed + 20, memory);
      expected.push_back(whole_norm(x, dy, weight, memory, stream));
      const auto cut = [&](const Tensor& all) { return all.slice(3, at, at + own); };
      const Tensor rstd = memory.zeros({kTokens}, DType::f64, MemoryTag::activations);
      const auto make = [&] {
        return memory.zeros({kB, kS, 1, own}, DType::f64, MemoryTag::activations);
      };
      // Of a stretch that several ranks have, each has a part of the gradient.
      const Tensor own_dy = make();
      ops::copy(cut(dy), own_dy, stream);
      if (seed == 2) ops::scale(own_dy, 1.0 / copies, stream);
      rows.push_back({cut(x), weight.slice(0, at, at + own), rstd, make()});
      gradients.push_back({own_dy, rows.back().x, rows.back().weight, rstd, make()});
      begins.push_back(at);
      widths.push_back(width);
    }
    const JointNorm norm(&world.all());
    norm.forward(rows, kEps, false, ctx);
    norm.backward_input(gradients, kEps, ctx);
    const auto expect_stretch = [&](const Tensor& made, const std::vector<double>& all,
                                    std::size_t i, double factor) {
      const auto values = values_of(made);
      const std::int64_t own = made.size(3);
      for (std::int64_t t = 0; t < kTokens; ++t) {
        for (std::int64_t j = 0; j < own; ++j) {
          EXPECT_NEAR(values[static_cast<std::size_t>(t * own + j)],
                      factor * all[static_cast<std::size_t>(t * widths[i] + begins[i] + j)], 1e-12);
        }
      }
    };
    for (std::size_t i = 0; i < rows.size(); ++i) {
      expect_stretch(rows[i].y, expected[i].y, i, 1.0);
      expect_stretch(gradients[i].dx, expected[i].dx, i, i == 0 ? 1.0 : 1.0 / copies);
      ops::fill(rows[i].y, 0.0, stream);
    }
    const auto calls = [&] { return world.all().counts().by_op; };
    const auto before = calls();
    norm.forward(rows, kEps, true, ctx);
    EXPECT_EQ(calls(), before);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      expect_stretch(rows[i].y, expected[i].y, i, 1.0);
    }
  });
}

TEST(JointNorm, IsTheNormOfWholeRows) {
  for (const int ranks : {1, 2, 3, 4}) expect_as_whole(ranks, 1);
  expect_as_whole(4, 2);
  expect_as_whole(2, 2);
  expect_as_whole(6, 3);
}

}  // namespace
}  // namespace heddle
