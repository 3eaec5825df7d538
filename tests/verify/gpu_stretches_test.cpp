// A layer of experts on a GPU whose rows go through ShortRooms in stretches. Skipped where there is
// no GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nn/experts/experts.h"
#include "ops/cast.h"
#include "ops/random.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

constexpr Device kCard{Device::Kind::cuda, 0};
constexpr std::int64_t kTokens = 2048, kWidth = 512, kExperts = 24, kPerToken = 8;

std::vector<double> values_on(const Tensor& device, Stream& stream) {
  const Tensor host = to_host(device, stream);
  const Tensor wide = Memory().alloc(host.shape(), DType::f64, MemoryTag::data);
  Stream cpu(1);
  ops::cast(host, wide, cpu);
  return {wide.host<double>().begin(), wide.host<double>().end()};
}

struct LayerCase {
  std::int64_t inside = 72;
  bool is_halved = false, is_followed = false;
};

/// Forward and backward of all tokens, so many at a time.
class StretchedLayer {
 public:
  StretchedLayer(DType dtype, std::int64_t at_once, const LayerCase& of) : dtype_(dtype) {
    const auto up = parameter("up", {kExperts * 2 * of.inside, kWidth}, 1),
               down = parameter("down", {kExperts * kWidth, of.inside}, 2),
               router = parameter("router", {kExperts, kWidth}, 3);
    Experts layer(std::make_unique<Router>(
                      router, Router::Options{.per_token = kPerToken, .rule = {.scale = 2.5}}),
                  {.up = up, .down = down}, nullptr, {.is_followed = of.is_followed});
    const Tensor x_TD = memory_.alloc({kTokens, kWidth}, dtype, MemoryTag::activations),
                 dy_TD = memory_.alloc({kTokens, kWidth}, dtype, MemoryTag::activations);
    ops::fill_normal(x_TD.view({x_TD.count()}), 4, 0, 1.0, stream_);
    ops::fill_normal(dy_TD.view({dy_TD.count()}), 5, 0, 1.0, stream_);
    for (std::int64_t begin = 0; begin < kTokens; begin += at_once) {
      pass(layer, x_TD.slice(0, begin, begin + at_once), dy_TD.slice(0, begin, begin + at_once),
           of.is_halved);
    }
    for (const auto& of : {up, down, router}) results.push_back(values_on(of->grad, stream_));
  }

  /// y, dx, gradients of `up`, `down` and the router.
  std::vector<std::vector<double>> results = std::vector<std::vector<double>>(2);

 private:
  std::shared_ptr<Parameter> parameter(const char* name, const Shape& shape, std::uint64_t seed) {
    auto made = std::make_shared<Parameter>();
    made->parts = {{name, shape, {}, {}, shape}};
    made->shape = shape;
    made->value = memory_.alloc(shape, dtype_, MemoryTag::parameters);
    made->grad = memory_.alloc(shape, DType::f32, MemoryTag::gradients);
    ops::fill_normal(made->value.view({shape.count()}), seed, 0, 0.05, stream_);
    return made;
  }

  void pass(Experts& layer, const Tensor& x_TD, const Tensor& dy_TD, bool is_halved) {
    MicroBatch batch;
    batch.ids = Memory().alloc({1, x_TD.size(0)}, DType::i32, MemoryTag::data);
    Saved saved;
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch, .step = 1};
    add(0, layer.multiply(x_TD, {}, saved, ctx));
    const auto input = [&] { return x_TD; };
    if (is_halved) {
      add(1, layer.backward_input_given(dy_TD, input, saved, ctx));
      layer.backward_weight_given(x_TD, saved, ctx);
    } else {
      add(1, layer.backward_given(dy_TD, input, saved, ctx));
    }
    EXPECT_TRUE(saved.empty());
  }
  void add(std::size_t result, const Tensor& tensor) {
    const auto more = values_on(tensor, stream_);
    results[result].insert(results[result].end(), more.begin(), more.end());
  }

  DType dtype_;
  Memory memory_{kCard};
  Stream stream_{1, kCard};
};

/// Against as many tokens at a time as are not cut. The gradient of `down` is added to, by a
/// stretch and by a micro-batch. With wide insides and a layer behind, which keeps its own, rows
/// are whole again.
TEST(GpuStretches, GiveTheResultsOfRowsThatAreNotCut) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  constexpr std::int64_t kCut = kTokens / 2, kUncut = kTokens / 4;
  ASSERT_TRUE(ShortRooms(kCut, kPerToken, kWidth, 72).are_needed());
  ASSERT_FALSE(ShortRooms(kUncut, kPerToken, kWidth, 72).are_needed());
  ASSERT_EQ(ShortRooms(kCut, kPerToken, kWidth, 200, true).beside_all().rows, kCut * kPerToken);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const LayerCase& of : {LayerCase{}, {.is_halved = true}, {200, false, true}}) {
      SCOPED_TRACE(testing::Message()
                   << name_of(dtype) << " inside " << of.inside << " halved " << of.is_halved);
      const StretchedLayer whole(dtype, kUncut, {of.inside}), cut(dtype, kCut, of),
          again(dtype, kCut, of);
      for (std::size_t i = 0; i < whole.results.size(); ++i) {
        const auto &want = whole.results[i], &got = cut.results[i];
        ASSERT_EQ(got.size(), want.size());
        double largest = 0.0, worst = 0.0;
        for (std::size_t at = 0; at < want.size(); ++at) {
          largest = std::max(largest, std::abs(want[at]));
          worst = std::max(worst, std::abs(got[at] - want[at]));
        }
        EXPECT_GT(largest, 1e-3);
        EXPECT_LT(worst, (dtype == DType::f32 ? 1e-5 : 0x1.0p-8) * largest) << "result " << i;
        EXPECT_EQ(again.results[i], got) << "result " << i;
      }
    }
  }
}

}  // namespace
}  // namespace heddle
