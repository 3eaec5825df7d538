// GPU memory of one layer of experts, forward and backward: moe.md 3.3's table, whose other side is
// benchmarks/peers/one_hot_memory.py. Weights and their gradients are bf16 and f32 here; the layer
// has nothing else around it: no attention, no vocabulary, no optimizer.
//
//     build/benchmarks/layer_memory [TOKENS...]

#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "nn/experts/experts.h"
#include "ops/random.h"

namespace heddle {
namespace {

constexpr std::int64_t kWidth = 4096, kInner = 4096, kExperts = 2, kPerToken = 2;

/// One layer on one GPU, and what it took at the most.
std::size_t peak_bytes(std::int64_t tokens) {
  const Device gpu{Device::Kind::cuda, 0};
  Stream stream(1, gpu);
  Memory memory(gpu), host = memory.for_host();
  const auto parameter = [&](const char* name, const Shape& shape, DType gradient) {
    auto made = std::make_shared<Parameter>();
    made->parts = {{name, shape, {}, {}, shape}};
    made->shape = shape;
    made->value = memory.alloc(shape, DType::bf16, MemoryTag::parameters);
    made->grad = memory.alloc(shape, gradient, MemoryTag::gradients);
    ops::fill_normal(made->value.view({shape.count()}), 1, 0, 0.02, stream);
    return made;
  };
  Experts layer(std::make_unique<Router>(
                    parameter("router", {kExperts, kWidth}, DType::f32),
                    Router::Options{.per_token = kPerToken, .rule = {.renormalize = false}}),
                {.up = parameter("up", {kExperts * 2 * kInner, kWidth}, DType::f32),
                 .down = parameter("down", {kExperts * kWidth, kInner}, DType::f32)});
  const Tensor x_TD = memory.alloc({tokens, kWidth}, DType::bf16, MemoryTag::activations),
               load = memory.zeros({1, kExperts + 2}, DType::f64, MemoryTag::communication);
  ops::fill_normal(x_TD.view({x_TD.count()}), 2, 0, 1.0, stream);
  MicroBatch batch;
  batch.ids = host.alloc({1, tokens}, DType::i32, MemoryTag::data);
  Saved saved;
  Ctx ctx{.stream = stream, .memory = memory, .batch = batch, .step = 1, .expert_load = load};
  Tensor y_TD = layer.multiply(x_TD, {}, saved, ctx);
  layer.backward_given(
      std::move(y_TD), [&] { return x_TD; }, saved, ctx);
  stream.synchronize();
  return memory.stats().peak;
}

}  // namespace
}  // namespace heddle

int main(int count, char** arguments) {
  std::vector<std::int64_t> sizes;
  for (int i = 1; i < count; ++i) sizes.push_back(std::atoll(arguments[i]));
  if (sizes.empty()) sizes = {4096, 8192, 16384, 32768};
  try {
    for (const std::int64_t tokens : sizes) {
      fmt::print("rows by their index  {:6} tokens  {:7.2f} GiB\n", tokens,
                 static_cast<double>(heddle::peak_bytes(tokens)) / (std::int64_t{1} << 30));
    }
  } catch (const heddle::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
