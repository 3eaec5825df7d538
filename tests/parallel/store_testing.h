#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/rng.h"
#include "nn/parameter_testing.h"
#include "parallel/box.h"
#include "parallel/param_store.h"
#include "parallel/schedule/make_schedule.h"

namespace heddle {

/// A unit that only has parameters.
class Holder : public Layer {
 public:
  explicit Holder(std::vector<std::shared_ptr<Parameter>> own) : own_(std::move(own)) {}

  Tensor forward(const Tensor&, Saved&, Ctx&) override { return {}; }
  Tensor backward_input(const Tensor&, Saved&, Ctx&) override { return {}; }
  void backward_weight(Saved&, Ctx&) override {}
  void visit(const ParamVisitor& visitor) override {
    for (const auto& parameter : own_) visitor(*parameter);
  }
  Cost cost(const CostShape&) const override { return {}; }

  const std::vector<std::shared_ptr<Parameter>>& own() const { return own_; }

 private:
  std::vector<std::shared_ptr<Parameter>> own_;
};

using Holders = std::vector<std::unique_ptr<Holder>>;

/// Lets a store do a step of one stage that has all its units, but for the computations. In
/// `update` the optimizer's step is left to the caller; without, gradients are all that is made.
inline void walk_step(ParamStore& store, const RankUnits& units, int microbatches, Stream& stream,
                      const std::function<void(const StepOp&)>& compute,
                      const std::function<void()>& update = {}) {
  RankUnits one_stage = units;
  one_stage.stages = {{0, static_cast<int>(units.units.size())}};
  store.retire_grads();
  tell_step(lower(make_schedule(Pipeline::one_f_one_b, {1, microbatches})), 0, one_stage,
            {.sums = {}, .updates = update != nullptr}, [&](const StepOp& op) {
              switch (op.kind) {
                case StepOp::Kind::action:
                case StepOp::Kind::norm: return;
                case StepOp::Kind::compute: return compute(op);
                case StepOp::Kind::update: return update();
                default: return store.perform(op, stream);
              }
            });
}

/// A backward pass of one micro-batch, in which `add` gives every unit's gradients.
inline void walk_gradients(ParamStore& store, Stream& stream,
                           const std::function<void(int unit)>& add) {
  walk_step(store, store.units(), 1, stream, [&](const StepOp& op) {
    if (op.action->act == Act::bw) add(op.what);
  });
}

/// With the values of one unit there.
inline void with_values(ParamStore& store, int unit, Stream& stream,
                        const std::function<void()>& look) {
  tell_forward(store.units(), std::array{unit}, [&](const StepOp& op) {
    op.kind == StepOp::Kind::compute ? look() : store.perform(op, stream);
  });
}

inline std::vector<Layer*> pointers(const Holders& holders) {
  std::vector<Layer*> units;
  for (const auto& holder : holders) units.push_back(holder.get());
  return units;
}

/// Calls body(local offset, index in the whole tensor) for every element of a part.
inline void for_elements(const Parameter& parameter, const Parameter::Part& part,
                         const std::function<void(std::size_t, std::size_t)>& body) {
  const bool is_matrix = parameter.is_matrix();
  const std::int64_t rows = part.extent[0], columns = is_matrix ? part.extent[1] : 1;
  const std::int64_t here = is_matrix ? parameter.shape[1] : 1;
  const std::int64_t there = is_matrix ? part.whole[1] : 1;
  const std::int64_t at = is_matrix ? part.at[1] : 0, begin = is_matrix ? part.begin[1] : 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      body(static_cast<std::size_t>((part.at[0] + r) * here + at + c),
           static_cast<std::size_t>((part.begin[0] + r) * there + begin + c));
    }
  }
}

/// Whole tensors put together from pieces that ranks hand in. Ranks may hand in at the same time.
class Collected {
 public:
  /// Takes the pieces that this rank would save, and checks the others against them at the end.
  void add(const std::vector<ParamPiece>& pieces) {
    const std::lock_guard lock(mutex_);
    for (const ParamPiece& piece : pieces) {
      Whole& whole = wholes_[piece.part->name];
      const auto count = static_cast<std::size_t>(piece.part->whole.count());
      whole.values.resize(count);
      whole.writers.resize(count);
      for_each_stretch(piece.data, piece.begin, piece.part->whole,
                       [&](const Tensor& stretch, std::int64_t first) {
                         auto at = static_cast<std::size_t>(first);
                         for (const float value : stretch.host<float>()) {
                           whole.take(at++, value, piece.is_first_writer());
                         }
                       });
    }
  }

  /// The tensors by name, once every rank has handed in. Fails unless every element was written
  /// once and every other holder has the same.
  std::map<std::string, std::vector<float>> tensors() const {
    std::map<std::string, std::vector<float>> all;
    for (const auto& [name, whole] : wholes_) {
      for (const int writers : whole.writers) EXPECT_EQ(writers, 1) << name;
      for (const auto& [at, value] : whole.others) EXPECT_EQ(value, whole.values[at]) << name;
      all[name] = whole.values;
    }
    return all;
  }

 private:
  struct Whole {
    std::vector<float> values;
    std::vector<int> writers;
    std::vector<std::pair<std::size_t, float>> others;

    void take(std::size_t at, float value, bool is_writer) {
      if (!is_writer) return others.emplace_back(at, value), void();
      values[at] = value;
      ++writers[at];
    }
  };
  std::mutex mutex_;
  std::map<std::string, Whole> wholes_;
};

/// Adds this rank's contribution of one micro-batch to a gradient, as a layer does. The element's
/// contribution is a function of the tensor's name and the index in the whole.
using Contribution = std::function<float(const std::string& name, std::size_t index)>;

inline void contribute(Parameter& parameter, const Contribution& of) {
  const float keep = static_cast<float>(parameter.claim_grad());
  const auto grad = parameter.grad.host<float>();
  if (keep == 0.0F) std::ranges::fill(grad, 0.0F);
  for (const Parameter::Part& part : parameter.parts) {
    for_elements(parameter, part,
                 [&](std::size_t here, std::size_t there) { grad[here] += of(part.name, there); });
  }
}

}  // namespace heddle
