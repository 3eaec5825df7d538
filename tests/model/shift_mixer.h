#pragma once

#include <algorithm>

#include "model/blocks/branch_kind.h"
#include "model/spec.h"

namespace heddle {

/// A mixer that is not attention: y_t = (x_t + x_{t-1}) W_g, for each group g of the width apart.
/// Its weight has three dimensions, [groups, width, width], and tp divides it by groups.
class ShiftMix final : public Layer {
 public:
  /// This rank has the groups from `first` on, as many as the weight has.
  ShiftMix(std::shared_ptr<Parameter> weight, std::int64_t first)
      : weight_(std::move(weight)), first_(first) {}

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override {
    const Tensor y = zeros_like(x, ctx);
    if (!ctx.stream.is_dry()) {
      const Tensor mixed = shifted(x, true, ctx);
      for_each(
          [&](std::int64_t t, std::int64_t w, std::int64_t from, std::int64_t to) {
            at(y, t, to) += at(mixed, t, from) * weight_->value.data<float>()[w];
          },
          x.size(0));
    }
    if (ctx.keeps_all()) saved.put(kInput, x);
    return y;
  }

  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override {
    const Tensor dmixed = zeros_like(dy, ctx);
    saved.put(kOutputGrad, dy);
    if (ctx.stream.is_dry()) return shifted(dmixed, false, ctx);
    for_each(
        [&](std::int64_t t, std::int64_t w, std::int64_t from, std::int64_t to) {
          at(dmixed, t, from) += at(dy, t, to) * weight_->value.data<float>()[w];
        },
        dy.size(0));
    return shifted(dmixed, false, ctx);
  }

  void backward_weight(Saved& saved, Ctx& ctx) override {
    const Tensor x = saved.take(kInput), dy = saved.take(kOutputGrad);
    weight_->clear_stale_grad(ctx.stream);
    if (ctx.stream.is_dry()) return;
    const Tensor mixed = shifted(x, true, ctx);
    for_each(
        [&](std::int64_t t, std::int64_t w, std::int64_t from, std::int64_t to) {
          weight_->grad.data<float>()[w] += at(mixed, t, from) * at(dy, t, to);
        },
        x.size(0));
  }

  void visit(const ParamVisitor& visitor) override { visitor(*weight_); }

  Cost cost(const CostShape& shape) const override {
    const WeightProduct product{static_cast<double>(shape.tokens()), static_cast<double>(width()),
                                static_cast<double>(groups() * width())};
    const double flops = 2.0 * product.rows * product.in * product.out;
    Cost cost{flops, flops, flops, shape.bytes(whole_), shape.bytes(whole_)};
    cost.products = {product};
    cost.touched_bytes_f = cost.touched_bytes_b = 3.0 * static_cast<double>(shape.bytes(whole_));
    return cost;
  }

  std::int64_t whole_ = 0;  ///< width of the residual

 private:
  enum Slot { kInput, kOutputGrad };
  std::int64_t groups() const { return weight_->shape[0]; }
  std::int64_t width() const { return weight_->shape[1]; }

  static float& at(const Tensor& x, std::int64_t t, std::int64_t column) {
    return x.data<float>()[t * x.size(1) + column];
  }
  static Tensor zeros_like(const Tensor& x, Ctx& ctx) {
    const Tensor zeros = ctx.activation(x.shape(), x.dtype());
    if (!ctx.stream.is_dry()) std::ranges::fill(zeros.host<float>(), 0.0F);
    return zeros;
  }
  /// Every token with the one before it; backward: with the one behind it.
  Tensor shifted(const Tensor& x, bool is_forward, Ctx& ctx) const {
    const Tensor sum = zeros_like(x, ctx);
    if (ctx.stream.is_dry()) return sum;
    const std::int64_t S = ctx.batch.seq_len();
    for (std::int64_t t = 0; t < x.size(0); ++t) {
      const bool has_other = is_forward ? t % S > 0 : t % S < S - 1;
      const std::int64_t other = is_forward ? t - 1 : t + 1;
      for (std::int64_t i = 0; i < x.size(1); ++i) {
        at(sum, t, i) = at(x, t, i) + (has_other ? at(x, other, i) : 0.0F);
      }
    }
    return sum;
  }
  /// Calls visit(token, number of the weight, column it takes from, column it adds to).
  template <class Visit>
  void for_each(const Visit& visit, std::int64_t tokens) const {
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t g = 0; g < groups(); ++g) {
        const std::int64_t column = (first_ + g) * width();
        for (std::int64_t i = 0; i < width(); ++i) {
          for (std::int64_t o = 0; o < width(); ++o) {
            visit(t, (g * width() + i) * width() + o, column + i, column + o);
          }
        }
      }
    }
  }

  std::shared_ptr<Parameter> weight_;
  const std::int64_t first_;
};

class ShiftKind final : public BranchKind {
 public:
  Layers build(const BranchBuilder& builder) const override {
    const ModelSpec& spec = builder.spec();
    const TensorRules& tensor = builder.tensor();
    const std::int64_t width = spec.hidden / kGroups;
    const auto [first, groups] = tensor.cut(kGroups, 1);
    auto weight = std::make_shared<Parameter>();
    weight->shape = {groups, width, width};
    weight->parts = {{builder.named("model.layers.{}.shift.weight"),
                      {kGroups, width, width},
                      {first, 0, 0},
                      {0, 0, 0},
                      weight->shape}};
    weight->layout = tensor.divided(0);
    weight->init = {Init::Kind::normal, 0.05};
    auto mix = std::make_unique<ShiftMix>(std::move(weight), first);
    mix->whole_ = spec.hidden;
    Layers layers;
    layers.push_back(builder.norm(spec.names.attention_norm));
    tensor.enter(layers, spec.hidden);
    layers.push_back(std::move(mix));
    tensor.leave(layers, spec.hidden);
    return layers;
  }

  std::string refuse_tp(const ModelSpec&, const ParallelRequest& request) const override {
    return kGroups % request.tp == 0 ? "" : "does not divide the 4 groups of the shift mixer";
  }

 private:
  static constexpr std::int64_t kGroups = 4;
};

/// The model with every other attention replaced by a ShiftMix.
inline ModelSpec with_shift_mixers(ModelSpec spec) {
  // Once: ranks that are threads ask for the model at the same time.
  [[maybe_unused]] static const bool is_known = [] {
    add_branch_kind("shift", std::make_unique<ShiftKind>());
    return true;
  }();
  spec.blocks = {{.branches = {"shift", "dense"}}, {.branches = {"attention", "dense"}}};
  return spec;
}

}  // namespace heddle
