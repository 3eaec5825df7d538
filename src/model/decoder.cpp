#include "model/decoder.h"

#include <fmt/format.h>

#include <bit>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "model/blocks/branch_kind.h"
#include "model/rope_tables.h"
#include "nn/embedding.h"
#include "nn/fuse.h"
#include "nn/recompute.h"
#include "nn/residual.h"
#include "nn/scale.h"
#include "nn/sequential.h"

namespace heddle {
namespace {

using Cut = TensorRules::Cut;

/// The branches of block `index` on the residual: one after the other, or all from the same
/// input.
std::unique_ptr<Layer> build_block(BranchBuilder& builder, std::int64_t index,
                                   const FuseOptions& fusion) {
  builder.begin_block(index);
  const BlockSpec& spec = builder.spec().block(index);
  std::vector<Layers> branches;
  for (const std::string& branch : spec.branches) {
    branches.push_back(fuse(branch_kind(branch).build(builder), fusion));
  }
  if (spec.is_parallel) return std::make_unique<Residual>(std::move(branches));
  Layers parts;
  for (Layers& branch : branches) parts.push_back(std::make_unique<Residual>(std::move(branch)));
  return std::make_unique<Sequential>(std::move(parts));
}

/// Embedding and head, whose vocabulary may be divided over tp or pp.
class VocabularyBuilder {
 public:
  VocabularyBuilder(const ModelSpec& spec, const BuildOptions& options, const DecoderPart& part,
                    Device device)
      : spec_(spec),
        options_(options),
        tensor_(part.tensor),
        part_(part),
        row_multiple_(vocabulary_multiple(device)) {
    if (part.pipeline != nullptr) rows_ = TensorRules(*part.pipeline, false);
    if (is_on_tensor()) rows_ = part.tensor;
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
    return std::make_unique<Embedding>(std::move(tokens), rows, own_tokens(), spec_.padding);
  }

  /// From the embedding's output to the residual.
  Layers after_embedding() const {
    Layers layers;
    if (is_on_tensor()) {
      tensor_.leave(layers, spec_.hidden);
    } else {
      tensor_.join_tokens(layers, spec_.hidden);
    }
    if (spec_.embedding_scale != 1.0) {
      layers.push_back(std::make_unique<Scale>(spec_.embedding_scale, spec_.hidden));
    }
    return layers;
  }

  std::unique_ptr<Layer> positions() const {
    auto table = make_parameter(spec_.names.position_embedding + ".weight",
                                {spec_.max_positions, spec_.hidden},
                                {Init::Kind::normal, spec_.init_stddev}, tensor_.on_residual());
    return std::make_unique<PositionEmbedding>(std::move(table), tensor_.token_share());
  }

  /// From the residual to the head's input.
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
                                                                       .whole = spec_.vocab},
                                                        .cap = spec_.logits_cap});
  }

  std::unique_ptr<SplitHead> split_head(std::shared_ptr<Parameter> projection) const {
    const SplitHead::Rows rows{.holders = rows_.ranks(),
                               .own = rows_.rank(),
                               .each = padded_rows(),
                               .valid = valid_rows().size};
    return std::make_unique<SplitHead>(std::move(projection), rows, own_tokens(),
                                       part_.head_input_grad);
  }

 private:
  bool is_on_tensor() const {
    return tensor_.divides() && part_.vocabulary == VocabularyPlacement::tensor;
  }
  std::int64_t padded_rows() const { return rows_.padded_rows(spec_.vocab, row_multiple_); }
  Cut valid_rows() const { return rows_.valid_rows(spec_.vocab, row_multiple_); }
  std::int64_t first_row() const { return rows_.rank() * padded_rows(); }
  /// The tokens that this rank looks up and has the loss of. Where tp ranks hold the same rows they
  /// share the tokens, even if every rank has all activations, so that nothing is computed twice.
  TokenShare own_tokens() const {
    return is_on_tensor() ? TokenShare{} : TokenShare{tensor_.rank(), tensor_.ranks()};
  }

  const ModelSpec& spec_;
  const BuildOptions& options_;
  const TensorRules& tensor_;
  const DecoderPart& part_;
  TensorRules rows_;  // what the rows are divided by
  const std::int64_t row_multiple_;
};

}  // namespace

std::string UnitLabel::text() const {
  switch (kind) {
    case Kind::embedding: return "embedding";
    case Kind::positions: return "positions";
    case Kind::block: return fmt::format("block {}", block);
    case Kind::norm: return "norm";
    case Kind::head_entry: return "entry to the head";
    case Kind::head: break;
  }
  return "head";
}

std::vector<Layer*> Decoder::unit_pointers() const {
  std::vector<Layer*> pointers;
  for (const Units& stage : stages) {
    for (const auto& unit : stage) pointers.push_back(unit.get());
  }
  for (const auto& unit : vocabulary) pointers.push_back(unit.get());
  return pointers;
}

namespace {

/// Makes units on demand, in any order.
class DecoderBuilder {
 public:
  DecoderBuilder(const ModelSpec& spec, const BuildOptions& options, Memory& memory,
                 const DecoderPart& part)
      : spec_(spec),
        options_(options),
        unties_(part.unties),
        divides_vocabulary_(part.vocabulary == VocabularyPlacement::pipeline),
        vocabulary_(spec, options, part, memory.device()),
        blocks_(spec, options, part.tensor, ropes(spec, options, memory), part.context,
                part.experts ? &*part.experts : nullptr),
        fusion_{.norm_output = memory.device().kind == Device::Kind::cuda ? NormOutput::kept
                                                                          : NormOutput::rebuilt,
                .mlp_tokens = options.recompute_blocks ? options.mlp_tokens : 0} {}

  static BranchBuilder::Ropes ropes(const ModelSpec& spec, const BuildOptions& options,
                                    Memory& memory) {
    const auto tables = [&](const std::optional<RopeSpec>& rope) {
      return make_rope_tables(rope, options.positions, statistics_of(options.dtype), memory);
    };
    return {.usual = tables(spec.rope),
            .of_windows = spec.window_rope ? tables(spec.window_rope) : nullptr};
  }

  /// `end`: behind its last unit.
  void begin_stage(int end) {
    decoder_.stages.emplace_back();
    decoder_.labels.emplace_back();
    blocks_.begin_stage(std::min<std::int64_t>(end - 1, spec_.layers));
  }

  void add(int unit) {
    const int last = unit_count(spec_) - 1;
    if (unit == 0) {
      add_embedding();
    } else if (unit == last) {
      add_head();
    } else if (unit == last - 1) {
      push({UnitLabel::Kind::norm}, final_norm());
    } else {
      auto block = build_block(blocks_, unit - 1, fusion_);
      if (options_.recompute_blocks) {
        block = std::make_unique<Recompute>(std::move(block), spec_.hidden);
      }
      push({UnitLabel::Kind::block, unit - 1}, std::move(block));
    }
  }

  /// Embedding and head for a rank that has rows of both, whatever its stages.
  void add_vocabulary() {
    decoder_.token_embedding = embedding_table();
    decoder_.vocabulary.push_back(vocabulary_.embedding(decoder_.token_embedding));
    decoder_.projection = projection();
    decoder_.split_head = vocabulary_.split_head(decoder_.projection);
    auto head = vocabulary_.head(decoder_.projection);
    decoder_.head = head.get();
    decoder_.vocabulary.push_back(std::move(head));
  }

  Decoder& decoder() { return decoder_; }

 private:
  /// The token table: the other end's where both are one parameter.
  std::shared_ptr<Parameter> table_at(const std::shared_ptr<Parameter>& other_end) const {
    if (spec_.tied_embeddings && !unties_ && other_end) return other_end;
    return vocabulary_.table(spec_.names.token_embedding);
  }

  /// The token table where the embedding needs it.
  std::shared_ptr<Parameter> embedding_table() const {
    auto table = table_at(decoder_.projection);
    if (spec_.tied_embeddings && unties_) tie(*table, Parameter::Tie::first);
    return table;
  }

  std::shared_ptr<Parameter> projection() const {
    if (!spec_.tied_embeddings) return vocabulary_.table(spec_.names.head);
    auto table = table_at(decoder_.token_embedding);
    if (unties_) tie(*table, Parameter::Tie::last);
    return table;
  }

  /// The table is one of two that are one tensor: one at each end of the pipeline, unless every
  /// rank has rows of both.
  void tie(Parameter& table, Parameter::Tie end) const {
    table.tie = end;
    if (!divides_vocabulary_) table.layout = table.layout.with(Axis::pp, ends());
  }

  /// Scaling the head's input scales the logits.
  std::unique_ptr<Layer> final_norm() const {
    auto norm = blocks_.norm(spec_.names.final_norm);
    if (spec_.logits_scale == 1.0) return norm;
    Layers layers;
    layers.push_back(std::move(norm));
    layers.push_back(std::make_unique<Scale>(spec_.logits_scale, spec_.hidden));
    return std::make_unique<Sequential>(std::move(layers));
  }

  void add_embedding() {
    Layers layers = vocabulary_.after_embedding();
    if (!divides_vocabulary_) {
      decoder_.token_embedding = embedding_table();
      layers.insert(layers.begin(), vocabulary_.embedding(decoder_.token_embedding));
    }
    if (!layers.empty())
      push({UnitLabel::Kind::embedding}, std::make_unique<Sequential>(std::move(layers)));
    // Apart from the token table, which may be tied and then has a unit to itself.
    if (!spec_.rope) push({UnitLabel::Kind::positions}, vocabulary_.positions());
  }

  void add_head() {
    if (Layers before = vocabulary_.before_head(); !before.empty()) {
      push({UnitLabel::Kind::head_entry}, std::make_unique<Sequential>(std::move(before)));
      decoder_.head_entry = decoder_.stages.back().back().get();
    }
    if (divides_vocabulary_) return;
    decoder_.projection = projection();
    auto head = vocabulary_.head(decoder_.projection);
    decoder_.head = head.get();
    push({UnitLabel::Kind::head}, std::move(head));
  }

  void push(UnitLabel label, std::unique_ptr<Layer> unit) {
    decoder_.stages.back().push_back(std::move(unit));
    decoder_.labels.back().push_back(label);
  }

  const ModelSpec& spec_;
  const BuildOptions& options_;
  const bool unties_, divides_vocabulary_;
  const VocabularyBuilder vocabulary_;
  BranchBuilder blocks_;
  const FuseOptions fusion_;
  Decoder decoder_;
};

}  // namespace

Decoder build_decoder(const ModelSpec& spec, const BuildOptions& options, Memory& memory,
                      const DecoderPart& part) {
  if (options.positions > spec.max_positions && !spec.rope) {
    throw Error(ErrorCode::usage,
                fmt::format("sequences of {} tokens do not fit the model's table of {} positions",
                            options.positions, spec.max_positions),
                fmt::format("use at most {}", spec.max_positions));
  }
  DecoderBuilder builder(spec, options, memory, part);
  auto stages = part.stages;
  if (stages.empty()) stages = {{0, unit_count(spec)}};
  for (const auto& [begin, end] : stages) {
    builder.begin_stage(end);
    for (int unit = begin; unit < end; ++unit) builder.add(unit);
  }
  if (part.vocabulary == VocabularyPlacement::pipeline) builder.add_vocabulary();
  for (Layer* unit : builder.decoder().unit_pointers()) {
    unit->visit([&](Parameter& parameter) { spec.tuning.mark(parameter); });
  }
  return std::move(builder.decoder());
}

std::int64_t vocabulary_multiple(Device device) {
  return device.kind == Device::Kind::cuda ? 128 : 1;
}

std::int64_t usual_loss_chunk(const ModelSpec& spec, Device device) {
  if (device.kind == Device::Kind::cpu) return 1024;
  const auto most = static_cast<std::uint64_t>((std::int64_t{1} << 30) / spec.vocab);
  return static_cast<std::int64_t>(std::bit_floor(std::max<std::uint64_t>(most, 1024)));
}

void visit_tensors(const ModelSpec& spec,
                   const std::function<void(const Parameter&, const Parameter::Part&)>& take) {
  Memory memory(Memory::Mode::dry);
  const Decoder decoder = build_decoder(spec, {.positions = 1}, memory);
  std::set<const Parameter*> seen;
  for (Layer* unit : decoder.unit_pointers()) {
    unit->visit([&](const Parameter& parameter) {
      if (!seen.insert(&parameter).second) return;
      for (const auto& part : parameter.parts) take(parameter, part);
    });
  }
}

std::vector<std::string> tensor_names(const ModelSpec& spec) {
  std::vector<std::string> names;
  visit_tensors(spec,
                [&](const Parameter&, const Parameter::Part& part) { names.push_back(part.name); });
  return names;
}

Decoder one_of_each_block(const ModelSpec& spec, Memory& memory) {
  DecoderPart part;
  part.stages = {{1, 1 + static_cast<int>(spec.blocks.size())}};
  return build_decoder(spec, {.positions = 1}, memory, part);
}

std::vector<double> unit_costs(const ModelSpec& spec, std::int64_t seq_len) {
  Memory memory(Memory::Mode::dry);
  const Decoder blocks = one_of_each_block(spec, memory);
  std::vector<double> by_kind;
  for (const auto& block : blocks.stages[0]) {
    by_kind.push_back(block->cost({.seq_len = seq_len}).forward_flops /
                      static_cast<double>(seq_len));
  }
  std::vector<double> costs(static_cast<std::size_t>(unit_count(spec)), 0.0);
  for (std::size_t block = 0; block < static_cast<std::size_t>(spec.layers); ++block) {
    costs[block + 1] = by_kind[block % by_kind.size()];
  }
  costs.back() = 2.0 * static_cast<double>(spec.hidden) * static_cast<double>(spec.vocab);
  return costs;
}

}  // namespace heddle
