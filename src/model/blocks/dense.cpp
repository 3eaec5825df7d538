#include <fmt/format.h>

#include "model/blocks/branch_kind.h"
#include "nn/activation.h"

namespace heddle {
namespace {

using Outputs = std::vector<BranchBuilder::Output>;

/// The outputs of a gated MLP's first product. A fused tensor that is not divided is one piece.
Outputs gate_and_up(const ModelSpec& spec, const TensorRules& tensor) {
  const TensorNames& names = spec.names;
  const TensorRules::Cut own = tensor.cut(spec.ffn, 1);
  if (names.fused_gate_up.empty()) {
    return {{names.gate, spec.ffn, {own}}, {names.up, spec.ffn, {own}}};
  }
  if (!tensor.divides()) return {{names.fused_gate_up, 2 * spec.ffn, {{0, 2 * spec.ffn}}}};
  return {{names.fused_gate_up, 2 * spec.ffn, {own, {spec.ffn + own.begin, own.size}}}};
}

/// Up, a nonlinearity, and down again.
class Dense final : public BranchKind {
 public:
  Layers build(const BranchBuilder& builder) const override {
    const ModelSpec& spec = builder.spec();
    const TensorRules& tensor = builder.tensor();
    const TensorNames& names = spec.names;
    const TensorRules::Cut own = tensor.cut(spec.ffn, 1);
    Layers layers;
    builder.begin_branch(layers, names.mlp_norm);
    tensor.enter(layers, spec.hidden);
    const bool is_gated = spec.mlp != ModelSpec::Mlp::gelu;
    layers.push_back(builder.linear_by_output(
        is_gated ? gate_and_up(spec, tensor) : Outputs{{names.up, spec.ffn, {own}}},
        spec.mlp_bias));
    switch (spec.mlp) {
      case ModelSpec::Mlp::swiglu: layers.push_back(std::make_unique<SwiGlu>(own.size)); break;
      case ModelSpec::Mlp::geglu:
        layers.push_back(std::make_unique<GeGlu>(own.size, spec.gelu));
        break;
      case ModelSpec::Mlp::gelu:
        layers.push_back(std::make_unique<GeluLayer>(own.size, spec.gelu));
        break;
    }
    layers.push_back(builder.linear_by_input(names.down, {spec.ffn, own}, spec.mlp_bias));
    tensor.leave(layers, spec.hidden);
    builder.end_branch(layers, names.mlp_post_norm);
    return layers;
  }

  std::string refuse_tp(const ModelSpec& spec, const ParallelRequest& request) const override {
    if (spec.ffn % request.tp == 0) return {};
    return fmt::format("does not divide the model's MLP width = {}", spec.ffn);
  }
};

}  // namespace

std::unique_ptr<BranchKind> dense_kind() { return std::make_unique<Dense>(); }

}  // namespace heddle
