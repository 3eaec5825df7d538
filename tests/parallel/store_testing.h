#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/rng.h"
#include "nn/parameter_testing.h"
#include "parallel/param_store.h"

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
      const std::int64_t rows = piece.data.size(0);
      const bool is_matrix = piece.data.dims() == 2;
      const std::int64_t columns = is_matrix ? piece.data.size(1) : 1;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) {
          const std::int64_t index =
              is_matrix ? (piece.begin[0] + r) * piece.part->whole[1] + piece.begin[1] + c
                        : piece.begin[0] + r;
          const float value = piece.data.data<float>()[r * piece.data.stride(0) + c];
          const auto at = static_cast<std::size_t>(index);
          if (piece.is_first_writer()) {
            whole.values[at] = value;
            ++whole.writers[at];
          } else {
            whole.others.emplace_back(at, value);
          }
        }
      }
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
