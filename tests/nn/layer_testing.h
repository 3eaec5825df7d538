#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "nn/layer.h"
#include "nn/parameter_testing.h"
#include "ops/softmax_xent.h"
#include "parallel/param_store.h"

namespace heddle {

/// A row of the table of layers: how one is made and what it is fed.
struct LayerCase {
  std::string name;
  std::function<std::unique_ptr<Layer>(Memory&)> make;
  std::int64_t width = 0;         ///< of the input; 0: the layer reads the micro-batch's ids
  bool is_loss = false;           ///< the output is losses, and dy means nothing
  bool documents = false;         ///< the micro-batch is packed
  std::int64_t vocab = 11;        ///< ids and targets are below it
  bool trains_otherwise = false;  ///< its forward is another one where there is no backward
  double weight_range = 1.0;      ///< parameters are uniform in [-range, range]
};

inline void PrintTo(const LayerCase& layer, std::ostream* out) { *out << layer.name; }

inline constexpr std::int64_t kSequences = 2, kSeqLen = 7;

template <class... Parts>
Layers layers(std::unique_ptr<Parts>... parts) {
  Layers list;
  (list.push_back(std::move(parts)), ...);
  return list;
}

inline Tensor uniform(const Shape& shape, double range, std::uint64_t seed, Memory& memory) {
  const Tensor tensor = memory.alloc(shape, DType::f64, MemoryTag::workspace);
  std::uint64_t i = 0;
  for (double& value : tensor.host<double>()) {
    value = range * (2.0 * random_uniform(seed, i++) - 1.0);
  }
  return tensor;
}

inline std::vector<double> values_of(const Tensor& tensor) {
  const auto host = tensor.host<double>();
  return {host.begin(), host.end()};
}

/// A micro-batch of kSequences x kSeqLen with one ignored target; packed, it has documents of 3, 1
/// and 3 tokens.
inline MicroBatch micro_batch(const LayerCase& layer, std::uint64_t seed, Memory& memory) {
  const auto ints = [&] {
    return memory.alloc({kSequences, kSeqLen}, DType::i32, MemoryTag::data);
  };
  MicroBatch batch{.ids = ints(), .targets = ints(), .positions = ints(), .first_key = {}};
  if (layer.documents) batch.first_key = ints();
  const auto vocab = static_cast<std::uint64_t>(layer.vocab);
  for (std::int64_t i = 0; i < kSequences * kSeqLen; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const auto s = static_cast<std::int32_t>(i % kSeqLen);
    const std::int32_t start = !layer.documents || s < 3 ? 0 : s < 4 ? 3 : 4;
    batch.ids.host<std::int32_t>()[at] =
        static_cast<std::int32_t>(random_u64(rng_key(seed, "ids"), at) % vocab);
    batch.targets.host<std::int32_t>()[at] =
        s == 2 ? ops::kIgnoreTarget
               : static_cast<std::int32_t>(random_u64(rng_key(seed, "targets"), at) % vocab);
    batch.positions.host<std::int32_t>()[at] = s - start;
    if (layer.documents) batch.first_key.host<std::int32_t>()[at] = start;
  }
  return batch;
}

/// One layer with its parameters in double precision, and what the checks do to it.
class LayerRun {
 public:
  explicit LayerRun(const LayerCase& layer)
      : case_(layer), layer_(layer.make(memory_)), units_{layer_.get()} {
    store_ =
        std::make_unique<ParamStore>(units_, DType::f64, ParamStore::Purpose::training, memory_);
    std::uint64_t seed = 100;
    for (Parameter* p : store_->parameters()) {
      const Tensor start = uniform(p->shape, case_.weight_range, seed++, memory_);
      std::ranges::copy(start.host<double>(), p->value.host<double>().begin());
    }
  }

  /// What goes in: micro-batch, input and gradient of the output, all a function of the seed.
  struct Feed {
    MicroBatch batch;
    Tensor x, dy;
  };

  Feed feed(std::uint64_t seed) {
    Feed made{.batch = micro_batch(case_, seed, memory_), .x = {}, .dy = {}};
    made.x = case_.width == 0
                 ? made.batch.ids
                 : uniform({kSequences * kSeqLen, case_.width}, 1.5, rng_key(seed, "x"), memory_);
    Saved saved;
    Ctx ctx = context(made.batch);
    ctx.keep = Keep::nothing;
    const Tensor y = layer_->forward(input(made), saved, ctx);
    if (!case_.is_loss) made.dy = uniform(y.shape(), 1.0, rng_key(seed, "dy"), memory_);
    return made;
  }

  /// The number whose gradients the layer computes: a random projection of its output, or the
  /// scaled sum of its losses.
  double objective(const Feed& feed) {
    Saved saved;
    Ctx ctx = context(feed.batch);
    if (!case_.trains_otherwise) ctx.keep = Keep::nothing;
    const Tensor y = layer_->forward(input(feed), saved, ctx);
    EXPECT_TRUE(saved.empty() || case_.trains_otherwise);
    double sum = 0.0;
    for (std::int64_t i = 0; i < y.count(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      sum += y.host<double>()[at] * (case_.is_loss ? kLossScale : feed.dy.host<double>()[at]);
    }
    return sum;
  }

  std::size_t saved_bytes_after_forward(const Feed& feed) {
    Saved saved;
    Ctx ctx = context(feed.batch);
    layer_->forward(input(feed), saved, ctx);
    return saved.size_bytes();
  }

  enum class Halves { together, apart };

  /// F, B and W of one micro-batch, on top of the gradients that are there. Returns dx.
  std::vector<double> pass(
      const Feed& feed, Halves halves, const std::function<void()>& before_backward = [] {}) {
    Saved saved;
    Ctx ctx = context(feed.batch);
    const std::vector<double> dy = feed.dy.defined() ? values_of(feed.dy) : std::vector<double>{};
    layer_->forward(input(feed), saved, ctx);
    before_backward();
    Tensor dx;
    if (halves == Halves::together) {
      dx = layer_->backward(feed.dy, saved, ctx);
    } else {
      dx = layer_->backward_input(feed.dy, saved, ctx);
      layer_->backward_weight(saved, ctx);
    }
    EXPECT_TRUE(saved.empty()) << "something is left saved";
    if (feed.dy.defined()) {
      EXPECT_EQ(values_of(feed.dy), dy) << "dy was written to";
    }
    return dx.defined() ? values_of(dx) : std::vector<double>{};
  }

  /// The same with a forward whose output nobody wants.
  std::vector<double> pass_without_output(const Feed& feed) {
    Saved saved;
    Ctx ctx = context(feed.batch);
    layer_->prepare_backward(input(feed), saved, ctx);
    const Tensor dx = layer_->backward(feed.dy, saved, ctx);
    EXPECT_TRUE(saved.empty()) << "something is left saved";
    return dx.defined() ? values_of(dx) : std::vector<double>{};
  }

  /// As TrainStep does between steps; what lies in the gradients must not be seen again.
  void begin_step() {
    store_->retire_grads();
    for (Parameter* p : store_->parameters()) {
      if (p->trains) std::ranges::fill(p->grad.host<double>(), NAN);
    }
  }

  /// Of frozen parameters there are none.
  std::vector<std::vector<double>> gradients() const {
    std::vector<std::vector<double>> all;
    for (const Parameter* p : store_->parameters()) {
      EXPECT_EQ(p->grad.defined(), p->trains);
      all.push_back(p->trains ? values_of(p->grad) : std::vector<double>{});
    }
    return all;
  }

  Layer& layer() { return *layer_; }
  ParamStore& store() { return *store_; }

 private:
  static constexpr double kLossScale = 0.37;

  Ctx context(const MicroBatch& batch) {
    return {
        .stream = stream_, .memory = memory_, .batch = batch, .loss_scale = kLossScale, .step = 1};
  }

  /// A copy: some layers turn their input into what they keep, or later into its gradient.
  Tensor input(const Feed& feed) {
    if (case_.width == 0) return feed.x;
    const Tensor copy = memory_.alloc(feed.x.shape(), DType::f64, MemoryTag::activations);
    std::ranges::copy(feed.x.host<double>(), copy.host<double>().begin());
    return copy;
  }

  LayerCase case_;
  Memory memory_;
  Stream stream_{1};
  std::unique_ptr<Layer> layer_;
  std::vector<Layer*> units_;
  std::unique_ptr<ParamStore> store_;
};

/// Compares a gradient with central differences of `objective` at some of the tensor's elements.
inline void expect_gradient(const Tensor& at, const std::vector<double>& gradient,
                            const std::function<double()>& objective, const std::string& what) {
  constexpr double kStep = 1e-5;
  constexpr std::size_t kProbes = 16;
  ASSERT_EQ(static_cast<std::size_t>(at.count()), gradient.size());
  double squares = 0.0;
  for (const double g : gradient) squares += g * g;
  const double rms = std::sqrt(squares / static_cast<double>(gradient.size()));
  for (std::size_t probe = 0; probe < std::min(kProbes, gradient.size()); ++probe) {
    const std::size_t i =
        gradient.size() <= kProbes ? probe : random_permutation(7, probe, gradient.size());
    double& element = at.host<double>()[i];
    const double here = element;
    element = here + kStep;
    const double above = objective();
    element = here - kStep;
    const double below = objective();
    element = here;
    const double slope = (above - below) / (2.0 * kStep);
    ASSERT_NEAR(gradient[i], slope, 1e-6 * std::max(rms, std::abs(slope)) + 1e-8)
        << "element " << i << " of the gradient of " << what;
  }
}

}  // namespace heddle
