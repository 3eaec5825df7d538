#include "model/blocks/branch_builder.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "nn/fused_layers.h"
#include "nn/norm.h"
#include "nn/rope_tables.h"
#include "nn/scale.h"

namespace heddle {

std::shared_ptr<Parameter> make_parameter(const std::string& name, const Shape& shape, Init init,
                                          const Layout& layout) {
  Shape origin = shape;
  for (int dim = 0; dim < shape.dims(); ++dim) origin.set(dim, 0);
  auto parameter = std::make_shared<Parameter>();
  parameter->parts = {{name, shape, origin, origin, shape}};
  parameter->shape = shape;
  parameter->layout = layout;
  parameter->init = init;
  return parameter;
}

std::string BranchBuilder::named(const std::string& pattern) const {
  return fmt::format(fmt::runtime(pattern), index_);
}

std::string BranchBuilder::named(const std::string& pattern, std::int64_t expert) const {
  return fmt::format(fmt::runtime(pattern), index_, expert);
}

std::unique_ptr<Layer> BranchBuilder::norm(const std::string& pattern) const {
  const std::string name = named(pattern);
  const Layout layout = tensor_.on_residual();
  auto weight = make_parameter(name + ".weight", {spec_.hidden}, norm_init(), layout);
  if (spec_.norm == ModelSpec::Norm::rms) {
    return std::make_unique<RmsNorm>(std::move(weight), spec_.norm_eps, spec_.norm_adds_one);
  }
  return std::make_unique<LayerNorm>(
      std::move(weight),
      make_parameter(name + ".bias", {spec_.hidden}, {Init::Kind::zeros}, layout), spec_.norm_eps);
}

void BranchBuilder::begin_branch(Layers& layers, const std::string& pattern) const {
  if (!pattern.empty()) layers.push_back(norm(pattern));
}

void BranchBuilder::end_branch(Layers& layers, const std::string& post_norm) const {
  if (!post_norm.empty()) layers.push_back(norm(post_norm));
  if (spec_.residual_scale != 1.0) {
    layers.push_back(std::make_unique<Scale>(spec_.residual_scale, spec_.hidden));
  }
}

std::shared_ptr<const RopeTables> BranchBuilder::rope() const {
  const BlockSpec& block = spec_.block(index_);
  if (!block.rotates) return std::make_shared<RopeTables>();
  return block.window && rope_.of_windows ? rope_.of_windows : rope_.usual;
}

std::shared_ptr<Parameter> BranchBuilder::linear_weight(const std::vector<Output>& outputs,
                                                        const Input& in, const Layout& layout,
                                                        double stddev) const {
  auto weight = std::make_shared<Parameter>();
  std::int64_t at = 0;
  // Both storages are boxes of a matrix; they differ in which index comes first.
  const auto pair = [&](std::int64_t out, std::int64_t of_in) {
    return spec_.linears_are_in_out ? Shape{of_in, out} : Shape{out, of_in};
  };
  for (const Output& output : outputs) {
    for (const Cut& cut : output.cuts) {
      weight->parts.push_back({named(output.pattern) + ".weight", pair(output.whole, in.whole),
                               pair(cut.begin, in.cut.begin), pair(at, 0),
                               pair(cut.size, in.cut.size)});
      at += cut.size;
    }
  }
  weight->shape = pair(at, in.cut.size);
  weight->layout = layout;
  weight->init = {Init::Kind::normal, stddev};
  weight->is_inner = true;
  return weight;
}

std::shared_ptr<Parameter> BranchBuilder::linear_bias(const std::vector<Output>& outputs,
                                                      const Layout& layout) const {
  auto bias = std::make_shared<Parameter>();
  std::int64_t at = 0;
  for (const Output& output : outputs) {
    for (const Cut& cut : output.cuts) {
      bias->parts.push_back(
          {named(output.pattern) + ".bias", {output.whole}, {cut.begin}, {at}, {cut.size}});
      at += cut.size;
    }
  }
  bias->shape = {at};
  bias->layout = layout;
  bias->init = {Init::Kind::zeros};
  return bias;
}

namespace {

Linear::Storage storage_of(const ModelSpec& spec) {
  return spec.linears_are_in_out ? Linear::Storage::in_out : Linear::Storage::out_in;
}

}  // namespace

std::unique_ptr<Linear> BranchBuilder::linear_by_output(
    const std::vector<Output>& outputs, bool has_bias,
    std::optional<std::int64_t> first_key) const {
  const int output_dim = spec_.linears_are_in_out ? 1 : 0;
  auto weight = linear_weight(outputs, {spec_.hidden, {0, spec_.hidden}},
                              tensor_.divided(output_dim), spec_.init_stddev);
  std::shared_ptr<Parameter> bias;
  if (has_bias) bias = linear_bias(outputs, tensor_.divided(0));
  if (first_key && tensor_.copies(spec_.kv_heads) > 1) {
    HEDDLE_CHECK(output_dim == 0, "key heads that are held several times lie in rows");
    weight->tail = {*first_key, tensor_.divided_keys(0)};
    if (bias) bias->tail = weight->tail;
  } else {
    first_key.reset();
  }
  auto linear = std::make_unique<Linear>(std::move(weight), std::move(bias), storage_of(spec_));
  // Every rank makes all of x A^T for its own outputs.
  adapt(*linear, outputs, {spec_.hidden, {0, spec_.hidden}},
        {.down = tensor_.used_apart(), .up = tensor_.divided(0), .first_key = first_key});
  return linear;
}

std::unique_ptr<Linear> BranchBuilder::linear_by_input(const std::string& pattern, const Input& in,
                                                       bool has_bias) const {
  const std::vector<Output> outputs = {{pattern, spec_.hidden, {{0, spec_.hidden}}}};
  const int input_dim = spec_.linears_are_in_out ? 0 : 1;
  auto linear = std::make_unique<Linear>(
      linear_weight(outputs, in, tensor_.divided(input_dim), output_stddev()),
      has_bias ? linear_bias(outputs, whole_on_stage()) : nullptr, storage_of(spec_),
      tensor_.rank() == 0);
  // A rank's x A^T is a part of the sum, and so is what B makes of it.
  adapt(*linear, outputs, in, {.down = tensor_.divided(1), .up = tensor_.used_apart()});
  return linear;
}

std::unique_ptr<Linear> BranchBuilder::linear_by_token(const std::vector<Output>& outputs,
                                                       std::int64_t in, double stddev) const {
  const Input whole{in, {0, in}};
  auto linear = std::make_unique<Linear>(
      linear_weight(outputs, whole, tensor_.used_apart(), stddev), nullptr, storage_of(spec_));
  adapt(*linear, outputs, whole,
        {.down = tensor_.used_apart(),
         .up = tensor_.used_apart(),
         .tokens = {tensor_.rank(), tensor_.ranks()}});
  return linear;
}

void BranchBuilder::adapt(Linear& linear, const std::vector<Output>& outputs, const Input& in,
                          const AdapterLayouts& layouts) const {
  if (!spec_.tuning.lora) return;
  const LoraSpec& lora = *spec_.tuning.lora;
  auto down = std::make_shared<Parameter>();
  std::vector<LowRank::Target> targets;
  std::int64_t first = 0, ranks = 0;
  for (const Output& output : outputs) {
    const std::string module = named(output.pattern);
    std::int64_t width = 0;
    for (const Cut& cut : output.cuts) width += cut.size;
    const std::int64_t begin = std::exchange(first, first + width);
    if (!lora.adapts(module)) continue;
    down->parts.push_back({adapter_name(module, AdapterPart::down),
                           {lora.rank, in.whole},
                           {0, in.cut.begin},
                           {ranks, 0},
                           {lora.rank, in.cut.size}});
    ranks += lora.rank;
    auto up = std::make_shared<Parameter>();
    std::int64_t at = 0;
    for (const Cut& cut : output.cuts) {
      up->parts.push_back({adapter_name(module, AdapterPart::up),
                           {output.whole, lora.rank},
                           {cut.begin, 0},
                           {at, 0},
                           {cut.size, lora.rank}});
      at += cut.size;
    }
    up->shape = {width, lora.rank};
    up->layout = layouts.up;
    if (const auto key = layouts.first_key; key && *key <= begin) {
      up->layout = tensor_.divided_keys(0);
    } else if (key && *key < first) {
      up->tail = {*key - begin, tensor_.divided_keys(0)};
    }
    up->init = {Init::Kind::zeros};
    up->is_adapter = true;
    const std::uint64_t key = rng_key(rng_key(lora.dropout_seed, "lora.dropout"), module);
    targets.push_back({std::move(up), begin, key});
  }
  if (targets.empty()) return;
  down->shape = {ranks, in.cut.size};
  down->layout = layouts.down;
  // torch's kaiming_uniform_ with a = sqrt(5), as PEFT has it.
  down->init = {Init::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(in.whole))};
  down->is_adapter = true;
  const LowRank::Dropout dropout{lora.dropout, in.cut.begin, in.whole, layouts.tokens};
  linear.adapt(
      std::make_unique<LowRank>(std::move(down), std::move(targets), lora.scale(), dropout));
}

std::unique_ptr<Mlp> BranchBuilder::gated_mlp(const std::string& gate, const std::string& up,
                                              const std::string& down, std::int64_t width) const {
  const Cut own = tensor_.cut(width, 1);
  return std::make_unique<Mlp>(linear_by_output({{gate, width, {own}}, {up, width, {own}}}, false),
                               std::make_unique<SwiGlu>(own.size),
                               linear_by_input(down, {width, own}, false));
}

std::unique_ptr<Mlp> BranchBuilder::gated_mlp_by_token(const std::string& gate,
                                                       const std::string& up,
                                                       const std::string& down,
                                                       std::int64_t width) const {
  const Cut all{0, width};
  return std::make_unique<Mlp>(
      linear_by_token({{gate, width, {all}}, {up, width, {all}}}, spec_.hidden, spec_.init_stddev),
      std::make_unique<SwiGlu>(width),
      linear_by_token({{down, spec_.hidden, {{0, spec_.hidden}}}}, width, output_stddev()));
}

std::shared_ptr<Parameter> BranchBuilder::stacked(const std::vector<Matrix>& matrices,
                                                  const Layout& layout, double stddev) const {
  auto parameter = std::make_shared<Parameter>();
  std::int64_t at = 0;
  for (const auto& [name, whole, begin, extent] : matrices) {
    parameter->parts.push_back({name + ".weight", whole, begin, {at, 0}, extent});
    at += extent[0];
  }
  parameter->shape = {at, matrices.front().extent[1]};
  parameter->layout = layout;
  parameter->init = {Init::Kind::normal, stddev};
  parameter->is_inner = true;
  return parameter;
}

double BranchBuilder::output_stddev() const {
  return options_.scale_residual_init
             ? spec_.init_stddev / std::sqrt(2.0 * static_cast<double>(spec_.layers))
             : spec_.init_stddev;
}

}  // namespace heddle
