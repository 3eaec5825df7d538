#include <fmt/format.h>

#include "model/blocks/branch_kind.h"
#include "nn/activation.h"

namespace heddle {
namespace {

/// Up, a nonlinearity, and down again.
class Dense final : public BranchKind {
 public:
  Layers build(const BranchBuilder& builder) const override {
    const ModelSpec& spec = builder.spec();
    const TensorRules& tensor = builder.tensor();
    const TensorNames& names = spec.names;
    const TensorRules::Cut own = tensor.cut(spec.ffn, 1);
    Layers layers;
    layers.push_back(builder.norm(names.mlp_norm));
    tensor.enter(layers, spec.hidden);
    if (spec.mlp == ModelSpec::Mlp::swiglu) {
      layers.push_back(builder.linear_by_output(
          {{names.gate, spec.ffn, {own}}, {names.up, spec.ffn, {own}}}, spec.mlp_bias));
      layers.push_back(std::make_unique<SwiGlu>(own.size));
    } else {
      layers.push_back(builder.linear_by_output({{names.up, spec.ffn, {own}}}, spec.mlp_bias));
      layers.push_back(std::make_unique<GeluLayer>(own.size, spec.gelu));
    }
    layers.push_back(builder.linear_by_input(names.down, {spec.ffn, own}, spec.mlp_bias));
    tensor.leave(layers, spec.hidden);
    return layers;
  }

  std::string refuse_tp(const ModelSpec& spec, std::int64_t tp) const override {
    if (spec.ffn % tp == 0) return {};
    return fmt::format("does not divide the model's MLP width = {}", spec.ffn);
  }
};

}  // namespace

std::unique_ptr<BranchKind> dense_kind() { return std::make_unique<Dense>(); }

}  // namespace heddle
