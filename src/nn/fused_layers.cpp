#include "nn/fused_layers.h"

#include "base/check.h"
#include "ops/gemm.h"

namespace heddle {

NormProduct::NormProduct(std::unique_ptr<Norm> norm, std::unique_ptr<Redistribute> change,
                         std::unique_ptr<Product> product)
    : norm_(std::move(norm)), change_(std::move(change)), product_(std::move(product)) {
  HEDDLE_CHECK(!change_ || change_->keeps_tensor(), "a change that moves what is made again");
}

Tensor NormProduct::forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) {
  return product_->multiply_of(
      x, [&](const Tensor& rows) { return norm_->forward(rows, saved.child(kNorm), ctx); }, addend,
      saved.child(kProduct), ctx);
}

void NormProduct::prepare_backward(const Tensor& x, Saved& saved, Ctx& ctx) {
  product_->prepare_given(norm_->forward(x, saved.child(kNorm), ctx), saved.child(kProduct), ctx);
}

Tensor NormProduct::changed_back(const Tensor& gradient, Ctx& ctx) {
  if (!change_) return gradient;
  Saved nothing;
  return change_->backward_input(gradient, nothing, ctx);
}

Tensor NormProduct::backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) {
  Tensor input;
  const auto make_input = [&] { return input = norm_->output_again(saved.child(kNorm), ctx); };
  const Tensor gradient =
      product_->backward_input_given(dy, make_input, saved.child(kProduct), ctx);
  // Here and not in W, when the norm's weights may be gone.
  if (product_->needs_input()) saved.put(kProductInput, input.defined() ? input : make_input());
  return norm_->backward_input(changed_back(gradient, ctx), saved.child(kNorm), ctx);
}

void NormProduct::backward_weight(Saved& saved, Ctx& ctx) {
  product_->backward_weight_given(product_->needs_input() ? saved.take(kProductInput) : Tensor(),
                                  saved.child(kProduct), ctx);
  norm_->backward_weight(saved.child(kNorm), ctx);
}

Tensor NormProduct::backward_added(Tensor dy, const Tensor& addend, Saved& saved, Ctx& ctx) {
  Saved& of_norm = saved.child(kNorm);
  const Tensor gradient = product_->backward_given(
      std::move(dy), [&] { return norm_->output_again(of_norm, ctx); }, saved.child(kProduct), ctx);
  return norm_->backward_added(changed_back(gradient, ctx), addend, of_norm, ctx);
}

void NormProduct::visit(const ParamVisitor& visitor) {
  norm_->visit(visitor);
  product_->visit(visitor);
}

Cost NormProduct::cost(const CostShape& shape) const {
  Cost cost = norm_->cost(shape);
  if (change_) cost += change_->cost(shape);
  cost += product_->cost(shape);
  if (product_->needs_input()) cost.saved_bytes -= shape.bytes(product_->in());
  return cost;
}

Mlp::Mlp(std::unique_ptr<Linear> up, std::unique_ptr<Activation> activation,
         std::unique_ptr<Linear> down)
    : Product(up->in()),
      up_(std::move(up)),
      activation_(std::move(activation)),
      down_(std::move(down)),
      applies_swiglu_in_products_(up_->is_plain() && down_->is_plain() &&
                                  dynamic_cast<const SwiGlu*>(activation_.get()) != nullptr) {}

Tensor Mlp::activated(Tensor x_TD, Saved& saved, Ctx& ctx) {
  Tensor h, y_TF;
  if (applies_swiglu_in_products_) {
    h = ctx.activation({x_TD.size(0), up_->out()}, x_TD.dtype());
    y_TF = ctx.activation({x_TD.size(0), down_->in()}, x_TD.dtype());
    ops::gemm_swiglu(x_TD, up_->weight(), h, y_TF, ctx.stream);
  } else {
    h = up_->multiply(x_TD, {}, saved, ctx);
    x_TD = {};
    y_TF = activation_->output(h, ctx);
  }
  if (ctx.keeps_all()) saved.put(kHidden, h);
  return y_TF;
}

Tensor Mlp::multiply(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) {
  Tensor y_TF = activated(std::move(x_TD), saved, ctx);
  return down_->multiply(std::move(y_TF), addend_TD, saved, ctx);
}

void Mlp::prepare_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  if (applies_swiglu_in_products_) {
    activated(x_TD, saved, ctx);
  } else {
    saved.put(kHidden, up_->multiply(x_TD, {}, saved, ctx));
  }
}

Mlp::Middle Mlp::differentiate(const Tensor& dy_TD, Saved& saved, Ctx& ctx) {
  const Tensor h = saved.take(kHidden);
  if (!applies_swiglu_in_products_) {
    return {.dh = h,
            .y_TF = activation_->output_and_gradient(down_->input_grad(dy_TD, ctx), h, ctx)};
  }
  const Tensor y_TF = ctx.activation({dy_TD.size(0), down_->in()}, dy_TD.dtype());
  const Tensor scratch_TF = ctx.activation(y_TF.shape(), dy_TD.dtype());
  ops::gemm_swiglu_backward(dy_TD, down_->weight(), scratch_TF, h, h, y_TF, ctx.stream);
  return {.dh = h, .y_TF = y_TF};
}

Tensor Mlp::backward_input_given(const Tensor& dy_TD, const MakeInput& input, Saved& saved,
                                 Ctx& ctx) {
  auto [dh, y_TF] = differentiate(dy_TD, saved, ctx);
  if (down_->needs_input()) {
    down_->keep_inner(y_TF, dy_TD, saved.child(kDown), ctx);
    saved.put(kDownInput, std::move(y_TF));
    saved.put(kOutputGrad, dy_TD);
  }
  return up_->backward_input_given(dh, input, saved.child(kUp), ctx);
}

void Mlp::backward_weight_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  if (down_->needs_input()) {
    down_->add_weight_grads_kept(saved.take(kDownInput), saved.take(kOutputGrad),
                                 saved.child(kDown), ctx);
  }
  up_->backward_weight_given(x_TD, saved.child(kUp), ctx);
}

Tensor Mlp::backward_given(Tensor dy_TD, const MakeInput& input, Saved& saved, Ctx& ctx) {
  auto [dh, y_TF] = differentiate(dy_TD, saved, ctx);
  if (down_->needs_input()) down_->add_weight_grads(y_TF, dy_TD, ctx);
  y_TF = dy_TD = {};
  return up_->backward_given(std::move(dh), input, saved.child(kUp), ctx);
}

void Mlp::visit(const ParamVisitor& visitor) {
  up_->visit(visitor);
  down_->visit(visitor);
}

Cost Mlp::cost(const CostShape& shape) const {
  Cost cost = up_->cost(shape);
  cost += activation_->cost(shape);
  const Cost down = down_->cost(shape);
  cost += down;
  cost.output_products = down.output_products;
  cost.saved_bytes = (needs_input() ? shape.bytes(in()) : 0) + shape.bytes(up_->out());
  return cost;
}

AttentionCore::AttentionCore(std::unique_ptr<PrepareQkv> prepare,
                             std::unique_ptr<CausalAttention> attention)
    : prepare_(std::move(prepare)), attention_(std::move(attention)) {}

Tensor AttentionCore::forward(const Tensor& qkv, Saved& saved, Ctx& ctx) {
  const Qkv ready = prepare_->prepare(qkv, saved.child(kPrepare), ctx);
  return attention_->attend(ready, saved.child(kAttention), ctx);
}

Tensor AttentionCore::backward_input(const Tensor& dout, Saved& saved, Ctx& ctx) {
  const Qkv ready = prepare_->prepare_again(saved.child(kPrepare), ctx);
  Tensor dqkv = attention_->input_gradient(dout, ready, saved.child(kAttention), ctx);
  prepare_->turn_into_input_gradient(dqkv, saved.child(kPrepare), ctx);
  return dqkv;
}

void AttentionCore::backward_weight(Saved& saved, Ctx& ctx) {
  prepare_->backward_weight(saved.child(kPrepare), ctx);
}

void AttentionCore::visit(const ParamVisitor& visitor) { prepare_->visit(visitor); }

Cost AttentionCore::cost(const CostShape& shape) const {
  Cost cost = prepare_->cost(shape);
  const Cost attention = attention_->cost(shape);
  cost += attention;
  cost.saved_bytes -= cost.kept_input_bytes;
  cost.kept_input_bytes = attention.kept_input_bytes;
  cost.kept_output_bytes = attention.kept_output_bytes;
  return cost;
}

}  // namespace heddle
