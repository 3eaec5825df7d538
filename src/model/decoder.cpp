#include "model/decoder.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "model/rope_tables.h"
#include "nn/activation.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/recompute.h"
#include "nn/residual.h"
#include "nn/sequential.h"

namespace heddle {
namespace {

using Layers = std::vector<std::unique_ptr<Layer>>;

std::shared_ptr<Parameter> make_parameter(std::vector<Parameter::Part> parts, const Shape& shape,
                                          Init init) {
  auto parameter = std::make_shared<Parameter>();
  parameter->parts = std::move(parts);
  parameter->shape = shape;
  parameter->init = init;
  return parameter;
}

std::shared_ptr<Parameter> make_parameter(const std::string& name, const Shape& shape, Init init) {
  return make_parameter({{name, shape[0]}}, shape, init);
}

/// Makes the layers of one block; knows the family's names and options, and nothing of the mesh.
class BlockBuilder {
 public:
  BlockBuilder(const ModelSpec& spec, const BuildOptions& options,
               std::shared_ptr<const RopeTables> tables)
      : spec_(spec), options_(options), tables_(std::move(tables)) {}

  std::unique_ptr<Layer> block(std::int64_t index) {
    index_ = index;
    Layers attention = attention_branch(), mlp = mlp_branch();
    Layers parts;
    if (spec_.parallel_residual) {
      Layers branches;
      branches.push_back(std::make_unique<Sequential>(std::move(attention)));
      branches.push_back(std::make_unique<Sequential>(std::move(mlp)));
      return std::make_unique<Residual>(std::move(branches), spec_.hidden);
    }
    parts.push_back(residual(std::move(attention)));
    parts.push_back(residual(std::move(mlp)));
    return std::make_unique<Sequential>(std::move(parts));
  }

  std::unique_ptr<Layer> norm(const std::string& pattern) const {
    const std::string name = named(pattern);
    auto weight = make_parameter(name + ".weight", {spec_.hidden}, {Init::Kind::ones});
    if (spec_.norm == ModelSpec::Norm::rms) {
      return std::make_unique<RmsNorm>(std::move(weight), spec_.norm_eps);
    }
    return std::make_unique<LayerNorm>(
        std::move(weight), make_parameter(name + ".bias", {spec_.hidden}, {Init::Kind::zeros}),
        spec_.norm_eps);
  }

 private:
  struct Output {
    std::string pattern;
    std::int64_t size;
  };

  std::string named(const std::string& pattern) const {
    return fmt::format(fmt::runtime(pattern), index_);
  }

  std::unique_ptr<Layer> residual(Layers branch) const {
    Layers branches;
    branches.push_back(std::make_unique<Sequential>(std::move(branch)));
    return std::make_unique<Residual>(std::move(branches), spec_.hidden);
  }

  /// One product for several outputs of the same input, stacked.
  std::unique_ptr<Layer> linear(const std::vector<Output>& outputs, std::int64_t in, bool has_bias,
                                double stddev) const {
    std::int64_t out = 0;
    std::vector<Parameter::Part> weights, biases;
    for (const auto& [pattern, size] : outputs) {
      weights.push_back({named(pattern) + ".weight", size});
      biases.push_back({named(pattern) + ".bias", size});
      out += size;
    }
    auto bias = has_bias ? make_parameter(std::move(biases), {out}, {Init::Kind::zeros}) : nullptr;
    const Init init{Init::Kind::normal, stddev};
    if (spec_.linears_are_in_out) {
      weights.front().rows = in;  // families stored so have one part per linear
      return std::make_unique<Linear>(make_parameter(std::move(weights), {in, out}, init),
                                      std::move(bias), Linear::Storage::in_out);
    }
    return std::make_unique<Linear>(make_parameter(std::move(weights), {out, in}, init),
                                    std::move(bias));
  }

  double output_stddev() const {
    return options_.scale_residual_init
               ? spec_.init_stddev / std::sqrt(2.0 * static_cast<double>(spec_.layers))
               : spec_.init_stddev;
  }

  Layers attention_branch() const {
    const AttentionShape shape{spec_.heads, spec_.kv_heads, spec_.head_dim, spec_.qkv_interleaved};
    const TensorNames& names = spec_.names;
    std::vector<Output> qkv;
    if (!names.fused_qkv.empty()) {
      qkv = {{names.fused_qkv, shape.qkv_width()}};
    } else {
      const std::int64_t kv_width = spec_.kv_heads * spec_.head_dim;
      qkv = {{names.query, shape.out_width()}, {names.key, kv_width}, {names.value, kv_width}};
    }
    AttentionCore::QkNorm qk_norm;
    if (spec_.qk_norm) {
      const Shape per_head{spec_.head_dim};
      qk_norm = {make_parameter(named(names.query_norm) + ".weight", per_head, {Init::Kind::ones}),
                 make_parameter(named(names.key_norm) + ".weight", per_head, {Init::Kind::ones}),
                 spec_.norm_eps};
    }
    Layers layers;
    layers.push_back(norm(names.attention_norm));
    layers.push_back(linear(qkv, spec_.hidden, spec_.qkv_bias, spec_.init_stddev));
    layers.push_back(std::make_unique<AttentionCore>(shape, tables_, spec_.attention_scale,
                                                     static_cast<int>(index_), std::move(qk_norm)));
    layers.push_back(linear({{names.attention_out, spec_.hidden}}, shape.out_width(),
                            spec_.attention_out_bias, output_stddev()));
    return layers;
  }

  Layers mlp_branch() const {
    const TensorNames& names = spec_.names;
    Layers layers;
    layers.push_back(norm(names.mlp_norm));
    if (spec_.mlp == ModelSpec::Mlp::swiglu) {
      layers.push_back(linear({{names.gate, spec_.ffn}, {names.up, spec_.ffn}}, spec_.hidden,
                              spec_.mlp_bias, spec_.init_stddev));
      layers.push_back(std::make_unique<SwiGlu>(spec_.ffn));
    } else {
      layers.push_back(
          linear({{names.up, spec_.ffn}}, spec_.hidden, spec_.mlp_bias, spec_.init_stddev));
      layers.push_back(std::make_unique<GeluLayer>(spec_.ffn, spec_.gelu));
    }
    layers.push_back(
        linear({{names.down, spec_.hidden}}, spec_.ffn, spec_.mlp_bias, output_stddev()));
    return layers;
  }

  const ModelSpec& spec_;
  const BuildOptions& options_;
  std::shared_ptr<const RopeTables> tables_;
  std::int64_t index_ = 0;
};

}  // namespace

std::vector<Layer*> Decoder::unit_pointers() const {
  std::vector<Layer*> pointers;
  for (const auto& unit : units) pointers.push_back(unit.get());
  return pointers;
}

Decoder build_decoder(const ModelSpec& spec, const BuildOptions& options, Memory& memory) {
  if (options.positions > spec.max_positions && !spec.rope) {
    throw Error(ErrorCode::usage,
                fmt::format("sequences of {} tokens do not fit the model's table of {} positions",
                            options.positions, spec.max_positions),
                fmt::format("use at most {}", spec.max_positions));
  }
  BlockBuilder builder(spec, options,
                       make_rope_tables(spec.rope, options.positions, options.dtype, memory));
  const Init init{Init::Kind::normal, spec.init_stddev};
  const auto tokens =
      make_parameter(spec.names.token_embedding + ".weight", {spec.vocab, spec.hidden}, init);
  const auto positions = spec.rope ? nullptr
                                   : make_parameter(spec.names.position_embedding + ".weight",
                                                    {spec.max_positions, spec.hidden}, init);
  Decoder decoder;
  decoder.units.push_back(std::make_unique<Embedding>(tokens, positions));
  for (std::int64_t index = 0; index < spec.layers; ++index) {
    auto block = builder.block(index);
    if (options.recompute_blocks)
      block = std::make_unique<Recompute>(std::move(block), spec.hidden);
    decoder.units.push_back(std::move(block));
  }
  decoder.units.push_back(builder.norm(spec.names.final_norm));
  const auto projection = spec.tied_embeddings ? tokens
                                               : make_parameter(spec.names.head + ".weight",
                                                                {spec.vocab, spec.hidden}, init);
  auto head = std::make_unique<LossHead>(projection, nullptr, options.loss_chunk);
  decoder.head = head.get();
  decoder.units.push_back(std::move(head));
  return decoder;
}

}  // namespace heddle
