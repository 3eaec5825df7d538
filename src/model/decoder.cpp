#include "model/decoder.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "model/rope_tables.h"
#include "nn/activation.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/fuse.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/recompute.h"
#include "nn/residual.h"
#include "nn/sequential.h"

namespace heddle {
namespace {

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

using Cut = TensorRules::Cut;

/// One Hugging Face tensor's share of a linear layer: these stretches of its `whole` outputs.
struct Output {
  std::string pattern;
  std::int64_t whole = 0;
  std::vector<Cut> cuts;
};

/// The input of a linear layer: this stretch of `whole`.
struct Input {
  std::int64_t whole = 0;
  Cut cut;
};

/// Makes the layers of one block; knows the family's names and options.
class BlockBuilder {
 public:
  BlockBuilder(const ModelSpec& spec, const BuildOptions& options, const TensorRules& tensor,
               std::shared_ptr<const RopeTables> tables, Device device)
      : spec_(spec),
        options_(options),
        tensor_(tensor),
        tables_(std::move(tables)),
        norm_output_(device.kind == Device::Kind::cuda ? NormOutput::kept : NormOutput::rebuilt) {}

  std::unique_ptr<Layer> block(std::int64_t index) {
    index_ = index;
    std::vector<Layers> branches;
    branches.push_back(fuse(attention_branch(), norm_output_));
    branches.push_back(fuse(mlp_branch(), norm_output_));
    if (spec_.parallel_residual) return std::make_unique<Residual>(std::move(branches));
    Layers parts;
    for (Layers& branch : branches) parts.push_back(std::make_unique<Residual>(std::move(branch)));
    return std::make_unique<Sequential>(std::move(parts));
  }

  std::unique_ptr<Layer> norm(const std::string& pattern) const {
    const std::string name = named(pattern);
    const Layout layout = tensor_.on_stream();
    auto weight = make_parameter(name + ".weight", {spec_.hidden}, {Init::Kind::ones}, layout);
    if (spec_.norm == ModelSpec::Norm::rms) {
      return std::make_unique<RmsNorm>(std::move(weight), spec_.norm_eps);
    }
    return std::make_unique<LayerNorm>(
        std::move(weight),
        make_parameter(name + ".bias", {spec_.hidden}, {Init::Kind::zeros}, layout),
        spec_.norm_eps);
  }

 private:
  std::string named(const std::string& pattern) const {
    return fmt::format(fmt::runtime(pattern), index_);
  }

  /// One product for several outputs of the same input, stacked. `layout` is that of the weight.
  std::shared_ptr<Parameter> linear_weight(const std::vector<Output>& outputs, const Input& in,
                                           const Layout& layout, double stddev) const {
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

  std::shared_ptr<Parameter> linear_bias(const std::vector<Output>& outputs,
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

  Linear::Storage storage() const {
    return spec_.linears_are_in_out ? Linear::Storage::in_out : Linear::Storage::out_in;
  }

  /// A linear whose outputs are divided over tp, those from `first_key` on by key heads.
  std::unique_ptr<Layer> linear_by_output(const std::vector<Output>& outputs, bool has_bias,
                                          std::optional<std::int64_t> first_key = {}) const {
    const int output_dim = spec_.linears_are_in_out ? 1 : 0;
    auto weight = linear_weight(outputs, {spec_.hidden, {0, spec_.hidden}},
                                tensor_.divided(output_dim), spec_.init_stddev);
    std::shared_ptr<Parameter> bias;
    if (has_bias) bias = linear_bias(outputs, tensor_.divided(0));
    if (first_key && tensor_.copies(spec_.kv_heads) > 1) {
      HEDDLE_CHECK(output_dim == 0, "key heads that are held several times lie in rows");
      weight->tail = {*first_key, tensor_.divided_keys(0)};
      if (bias) bias->tail = weight->tail;
    }
    return std::make_unique<Linear>(std::move(weight), std::move(bias), storage());
  }

  /// A linear whose inputs are divided over tp: its output is a partial sum.
  std::unique_ptr<Layer> linear_by_input(const std::string& pattern, const Input& in,
                                         bool has_bias) const {
    const std::vector<Output> outputs = {{pattern, spec_.hidden, {{0, spec_.hidden}}}};
    const int input_dim = spec_.linears_are_in_out ? 0 : 1;
    return std::make_unique<Linear>(
        linear_weight(outputs, in, tensor_.divided(input_dim), output_stddev()),
        has_bias ? linear_bias(outputs, whole_on_stage()) : nullptr, storage(),
        tensor_.rank() == 0);
  }

  double output_stddev() const {
    return options_.scale_residual_init
               ? spec_.init_stddev / std::sqrt(2.0 * static_cast<double>(spec_.layers))
               : spec_.init_stddev;
  }

  /// The fused projection's outputs. A fused tensor that is not divided is one piece.
  std::vector<Output> qkv_outputs() const {
    const TensorNames& names = spec_.names;
    const std::int64_t hd = spec_.head_dim;
    const Cut q = tensor_.cut(spec_.heads, hd), kv = tensor_.cut(spec_.kv_heads, hd);
    const std::int64_t q_width = spec_.heads * hd, kv_width = spec_.kv_heads * hd;
    if (names.fused_qkv.empty()) {
      return {
          {names.query, q_width, {q}}, {names.key, kv_width, {kv}}, {names.value, kv_width, {kv}}};
    }
    const std::int64_t whole = q_width + 2 * kv_width;
    if (spec_.qkv_interleaved || !tensor_.divides()) {
      return {{names.fused_qkv, whole, {tensor_.cut(spec_.heads, whole / spec_.heads)}}};
    }
    return {{names.fused_qkv,
             whole,
             {q, {q_width + kv.begin, kv.size}, {q_width + kv_width + kv.begin, kv.size}}}};
  }

  Layers attention_branch() const {
    const TensorNames& names = spec_.names;
    const Cut heads = tensor_.cut(spec_.heads, 1), kv_heads = tensor_.cut(spec_.kv_heads, 1);
    const AttentionShape shape{heads.size, kv_heads.size, spec_.head_dim, spec_.qkv_interleaved};
    AttentionCore::QkNorm qk_norm;
    if (spec_.qk_norm) {
      const auto weight = [&](const std::string& pattern) {
        return make_parameter(named(pattern) + ".weight", {spec_.head_dim}, {Init::Kind::ones},
                              tensor_.used_apart());
      };
      qk_norm = {weight(names.query_norm), weight(names.key_norm), spec_.norm_eps};
    }
    Layers layers;
    layers.push_back(norm(names.attention_norm));
    tensor_.enter(layers, spec_.hidden);
    layers.push_back(linear_by_output(qkv_outputs(), spec_.qkv_bias, shape.out_width()));
    layers.push_back(std::make_unique<AttentionCore>(shape, tables_, spec_.attention_scale,
                                                     static_cast<int>(index_), std::move(qk_norm)));
    layers.push_back(
        linear_by_input(names.attention_out,
                        {spec_.heads * spec_.head_dim, tensor_.cut(spec_.heads, spec_.head_dim)},
                        spec_.attention_out_bias));
    tensor_.leave(layers, spec_.hidden);
    return layers;
  }

  Layers mlp_branch() const {
    const TensorNames& names = spec_.names;
    const Cut own = tensor_.cut(spec_.ffn, 1);
    Layers layers;
    layers.push_back(norm(names.mlp_norm));
    tensor_.enter(layers, spec_.hidden);
    if (spec_.mlp == ModelSpec::Mlp::swiglu) {
      layers.push_back(linear_by_output(
          {{names.gate, spec_.ffn, {own}}, {names.up, spec_.ffn, {own}}}, spec_.mlp_bias));
      layers.push_back(std::make_unique<SwiGlu>(own.size));
    } else {
      layers.push_back(linear_by_output({{names.up, spec_.ffn, {own}}}, spec_.mlp_bias));
      layers.push_back(std::make_unique<GeluLayer>(own.size, spec_.gelu));
    }
    layers.push_back(linear_by_input(names.down, {spec_.ffn, own}, spec_.mlp_bias));
    tensor_.leave(layers, spec_.hidden);
    return layers;
  }

  const ModelSpec& spec_;
  const BuildOptions& options_;
  const TensorRules& tensor_;
  std::shared_ptr<const RopeTables> tables_;
  const NormOutput norm_output_;
  std::int64_t index_ = 0;
};

/// The two ends of the model: embedding and head, whose vocabulary may be divided over tp or pp.
class EndsBuilder {
 public:
  EndsBuilder(const ModelSpec& spec, const BuildOptions& options, const DecoderShare& share,
              Device device)
      : spec_(spec),
        options_(options),
        tensor_(share.tensor),
        share_(share),
        row_multiple_(device.kind == Device::Kind::cuda ? 128 : 1) {
    if (share.pipeline != nullptr) rows_ = TensorRules(*share.pipeline, false);
    if (is_on_tensor()) rows_ = share.tensor;
  }

  /// A table with a row for every token that is here.
  std::shared_ptr<Parameter> table(const std::string& name) const {
    const Init init{Init::Kind::normal, spec_.init_stddev};
    const Shape whole{spec_.vocab, spec_.hidden};
    const Cut valid = valid_rows();
    auto parameter = std::make_shared<Parameter>();
    parameter->shape = {padded_rows(), spec_.hidden};
    parameter->layout = tensor_.used_apart();
    if (is_on_tensor()) {
      parameter->layout = tensor_.divided(0);
    } else if (rows_.divides()) {
      parameter->layout = tensor_.used_apart().with(Axis::pp, shard(0));
    }
    parameter->init = init;
    if (valid.size > 0) {
      parameter->parts = {
          {name + ".weight", whole, {valid.begin, 0}, {0, 0}, {valid.size, spec_.hidden}}};
    }
    return parameter;
  }

  std::unique_ptr<Layer> embedding(std::shared_ptr<Parameter> tokens) const {
    VocabularyRows rows;
    if (rows_.divides()) rows = {first_row(), false};
    return std::make_unique<Embedding>(std::move(tokens), rows, own_tokens());
  }

  /// From the embedding's output to the stream.
  Layers after_embedding() const {
    Layers layers;
    if (is_on_tensor()) {
      tensor_.leave(layers, spec_.hidden);
    } else {
      tensor_.join_tokens(layers, spec_.hidden);
    }
    return layers;
  }

  std::unique_ptr<Layer> positions() const {
    auto table = make_parameter(spec_.names.position_embedding + ".weight",
                                {spec_.max_positions, spec_.hidden},
                                {Init::Kind::normal, spec_.init_stddev}, tensor_.on_stream());
    return std::make_unique<PositionEmbedding>(std::move(table), tensor_.token_share());
  }

  /// From the stream to the head's input.
  Layers before_head() const {
    Layers layers;
    if (is_on_tensor()) {
      tensor_.enter(layers, spec_.hidden);
    } else {
      tensor_.share_tokens(layers, spec_.hidden);
    }
    return layers;
  }

  std::unique_ptr<LossHead> head(std::shared_ptr<Parameter> projection) const {
    return std::make_unique<LossHead>(std::move(projection),
                                      LossHead::Options{.chunk_tokens = options_.loss_chunk,
                                                        .tokens = own_tokens(),
                                                        .vocabulary = {.others = rows_.comm(),
                                                                       .first = first_row(),
                                                                       .valid = valid_rows().size,
                                                                       .whole = spec_.vocab}});
  }

  std::unique_ptr<SplitHead> split_head(std::shared_ptr<Parameter> projection) const {
    const SplitHead::Rows rows{.holders = rows_.ranks(),
                               .own = rows_.rank(),
                               .each = padded_rows(),
                               .valid = valid_rows().size};
    return std::make_unique<SplitHead>(std::move(projection), rows, own_tokens(),
                                       share_.head_input_grad);
  }

 private:
  bool is_on_tensor() const {
    return tensor_.divides() && share_.vocabulary == VocabularyPlacement::tensor;
  }
  std::int64_t padded_rows() const { return rows_.padded_rows(spec_.vocab, row_multiple_); }
  Cut valid_rows() const { return rows_.valid_rows(spec_.vocab, row_multiple_); }
  std::int64_t first_row() const { return rows_.rank() * padded_rows(); }
  /// Where tp ranks have the same rows, each has its tokens, also where the stream has all of them:
  /// nothing is computed twice.
  TokenShare own_tokens() const {
    return is_on_tensor() ? TokenShare{} : TokenShare{tensor_.rank(), tensor_.ranks()};
  }

  const ModelSpec& spec_;
  const BuildOptions& options_;
  const TensorRules& tensor_;
  const DecoderShare& share_;
  TensorRules rows_;  // what the rows are divided by
  /// A GPU's matrix products with the vocabulary are several times faster when its size, padded
  /// with zeros, is a multiple of a tile.
  const std::int64_t row_multiple_;
};

}  // namespace

std::vector<double> unit_costs(const ModelSpec& spec, std::int64_t seq_len) {
  const auto product = [](std::int64_t a, std::int64_t b) {
    return 2.0 * static_cast<double>(a) * static_cast<double>(b);
  };
  const std::int64_t heads = spec.heads * spec.head_dim, kv = spec.kv_heads * spec.head_dim;
  const int matrices = spec.mlp == ModelSpec::Mlp::swiglu ? 3 : 2;
  const double block = product(spec.hidden, 2 * heads + 2 * kv) +
                       matrices * product(spec.hidden, spec.ffn) +
                       product(heads, seq_len);  // two products of half the keys each
  std::vector<double> costs(static_cast<std::size_t>(unit_count(spec)), block);
  costs.front() = 0.0;
  costs[costs.size() - 2] = 0.0;
  costs.back() = product(spec.hidden, spec.vocab);
  return costs;
}

std::vector<Layer*> Decoder::unit_pointers() const {
  std::vector<Layer*> pointers;
  for (const Units& stage : stages) {
    for (const auto& unit : stage) pointers.push_back(unit.get());
  }
  for (const auto& unit : ends) pointers.push_back(unit.get());
  return pointers;
}

namespace {

/// Makes units on demand, in any order.
class DecoderBuilder {
 public:
  DecoderBuilder(const ModelSpec& spec, const BuildOptions& options, Memory& memory,
                 const DecoderShare& share)
      : spec_(spec),
        options_(options),
        unties_(share.unties),
        has_ends_apart_(share.vocabulary == VocabularyPlacement::pipeline),
        ends_(spec, options, share, memory.device()),
        blocks_(
            spec, options, share.tensor,
            make_rope_tables(spec.rope, options.positions, statistics_of(options.dtype), memory),
            memory.device()) {}

  void begin_stage() {
    decoder_.stages.emplace_back();
    decoder_.labels.emplace_back();
  }

  void add(int unit) {
    const int last = unit_count(spec_) - 1;
    if (unit == 0) {
      add_embedding();
    } else if (unit == last) {
      add_head();
    } else if (unit == last - 1) {
      push("norm", blocks_.norm(spec_.names.final_norm));
    } else {
      auto block = blocks_.block(unit - 1);
      if (options_.recompute_blocks) {
        block = std::make_unique<Recompute>(std::move(block), spec_.hidden);
      }
      push(fmt::format("layers.{}", unit - 1), std::move(block));
    }
  }

  /// Embedding and head for a rank that has rows of both, whatever its stages.
  void add_ends() {
    decoder_.token_embedding = embedding_table();
    decoder_.ends.push_back(ends_.embedding(decoder_.token_embedding));
    decoder_.projection = projection();
    decoder_.split_head = ends_.split_head(decoder_.projection);
    auto head = ends_.head(decoder_.projection);
    decoder_.head = head.get();
    decoder_.ends.push_back(std::move(head));
  }

  Decoder& decoder() { return decoder_; }

 private:
  /// The token table: the other end's where both are one parameter.
  std::shared_ptr<Parameter> table_at(const std::shared_ptr<Parameter>& other_end) const {
    if (spec_.tied_embeddings && !unties_ && other_end) return other_end;
    return ends_.table(spec_.names.token_embedding);
  }

  /// The token table where the embedding needs it.
  std::shared_ptr<Parameter> embedding_table() const {
    auto table = table_at(decoder_.projection);
    if (spec_.tied_embeddings && unties_) tie(*table, Parameter::Tie::first);
    return table;
  }

  std::shared_ptr<Parameter> projection() const {
    if (!spec_.tied_embeddings) return ends_.table(spec_.names.head);
    auto table = table_at(decoder_.token_embedding);
    if (unties_) tie(*table, Parameter::Tie::last);
    return table;
  }

  /// The table is one of two that are one tensor: one at each end of the pipeline, unless every
  /// rank has rows of both.
  void tie(Parameter& table, Parameter::Tie end) const {
    table.tie = end;
    if (!has_ends_apart_) table.layout = table.layout.with(Axis::pp, ends());
  }

  void add_embedding() {
    Layers layers = ends_.after_embedding();
    if (!has_ends_apart_) {
      decoder_.token_embedding = embedding_table();
      layers.insert(layers.begin(), ends_.embedding(decoder_.token_embedding));
    }
    if (!layers.empty()) push("embedding", std::make_unique<Sequential>(std::move(layers)));
    // Apart from the token table, which may be tied and then has a unit to itself.
    if (!spec_.rope) push("positions", ends_.positions());
  }

  void add_head() {
    if (Layers before = ends_.before_head(); !before.empty()) {
      push("head entry", std::make_unique<Sequential>(std::move(before)));
      decoder_.head_entry = decoder_.stages.back().back().get();
    }
    if (has_ends_apart_) return;
    decoder_.projection = projection();
    auto head = ends_.head(decoder_.projection);
    decoder_.head = head.get();
    push("head", std::move(head));
  }

  void push(std::string label, std::unique_ptr<Layer> unit) {
    decoder_.stages.back().push_back(std::move(unit));
    decoder_.labels.back().push_back(std::move(label));
  }

  const ModelSpec& spec_;
  const BuildOptions& options_;
  const bool unties_, has_ends_apart_;
  const EndsBuilder ends_;
  BlockBuilder blocks_;
  Decoder decoder_;
};

}  // namespace

Decoder build_decoder(const ModelSpec& spec, const BuildOptions& options, Memory& memory,
                      const DecoderShare& share) {
  if (options.positions > spec.max_positions && !spec.rope) {
    throw Error(ErrorCode::usage,
                fmt::format("sequences of {} tokens do not fit the model's table of {} positions",
                            options.positions, spec.max_positions),
                fmt::format("use at most {}", spec.max_positions));
  }
  if (spec.window && options.positions > *spec.window) {
    throw Error(ErrorCode::usage,
                fmt::format("the model attends to a sliding window of {} tokens, and sequences of "
                            "{} are longer; heddle only does full attention",
                            *spec.window, options.positions),
                fmt::format("use sequences of at most {}, or set sliding_window to null in "
                            "config.json if the model was not trained with one",
                            *spec.window));
  }
  DecoderBuilder builder(spec, options, memory, share);
  auto stages = share.stages;
  if (stages.empty()) stages = {{0, unit_count(spec)}};
  for (const auto& [begin, end] : stages) {
    builder.begin_stage();
    for (int unit = begin; unit < end; ++unit) builder.add(unit);
  }
  if (share.vocabulary == VocabularyPlacement::pipeline) builder.add_ends();
  return std::move(builder.decoder());
}

std::vector<std::string> tensor_names(const ModelSpec& spec) {
  Memory memory(Memory::Mode::dry);
  const Decoder decoder = build_decoder(spec, {.positions = 1}, memory);
  std::vector<std::string> names;
  std::set<const Parameter*> seen;
  for (Layer* unit : decoder.unit_pointers()) {
    unit->visit([&](const Parameter& parameter) {
      if (!seen.insert(&parameter).second) return;
      for (const auto& part : parameter.parts) names.push_back(part.name);
    });
  }
  return names;
}

}  // namespace heddle
