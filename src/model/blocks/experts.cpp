#include "nn/experts/experts.h"

#include <fmt/format.h>

#include "model/blocks/branch_kind.h"

namespace heddle {
namespace {

/// A router and the MLPs that it chooses from (docs/design/040-experts.md).
class ExpertsKind final : public BranchKind {
  using Cut = TensorRules::Cut;

 public:
  Layers build(const BranchBuilder& builder) const override {
    const ModelSpec& spec = builder.spec();
    const TensorRules& tensor = builder.tensor();
    const bool is_divided = builder.experts() != nullptr;
    Layers layers;
    builder.begin_branch(layers, spec.names.mlp_norm);
    is_divided ? tensor.share_tokens(layers, spec.hidden) : tensor.enter(layers, spec.hidden);
    ExpertDivision division;
    if (is_divided) {
      division = {
          .exchange = std::make_unique<ExpertExchange>(*builder.experts(), spec.experts->count,
                                                       fmt::format("block {}", builder.block())),
          .tokens = {tensor.rank(), tensor.ranks()},
          .ends_branch = !tensor.divides() || tensor.splits_tokens()};
    }
    division.is_followed =
        !builder.options().recompute_blocks && spec.expert_layers_before(builder.stage_end()) >
                                                   spec.expert_layers_before(builder.block() + 1);
    layers.push_back(std::make_unique<Experts>(router(builder), weights(builder), shared(builder),
                                               std::move(division)));
    is_divided ? tensor.join_tokens(layers, spec.hidden) : tensor.leave(layers, spec.hidden);
    builder.end_branch(layers, spec.names.mlp_post_norm);
    return layers;
  }

  /// Ranks that share the tokens have experts by ep and etp, and shared ones whole.
  std::string refuse_tp(const ModelSpec& spec, const ParallelRequest& request) const override {
    if (request.divides_experts()) return {};
    for (const std::int64_t width : {spec.experts->width, spec.experts->shared_width}) {
      if (width % request.tp != 0)
        return fmt::format("does not divide the experts' width = {}", width);
    }
    return {};
  }

 private:
  /// Where experts are divided, tp ranks share the tokens. Otherwise they route the same ones
  /// alike, and each has a part of every expert's output, and with it of the gradient of the
  /// weights; the losses of the router are the first one's.
  static std::unique_ptr<Router> router(const BranchBuilder& builder) {
    const ModelSpec& spec = builder.spec();
    const ExpertsSpec& experts = *spec.experts;
    const bool is_divided = builder.experts() != nullptr;
    const bool is_first = is_divided || builder.tensor().rank() == 0;
    Router::Options options{.per_token = experts.per_token,
                            .rule = experts.rule,
                            .gate = experts.gating,
                            .layer = spec.expert_layers_before(builder.block()),
                            .counts = is_first};
    if (is_divided) options.tokens = {builder.tensor().rank(), builder.tensor().ranks()};
    if (!experts.bias.empty()) options.bias = bias(builder, options.layer);
    if (builder.context() != nullptr) options.sharers.push_back(builder.context());
    if (is_divided && builder.tensor().divides())
      options.sharers.push_back(builder.tensor().comm());
    if (is_first) {
      options.loss = {.balance = experts.loss.balance / static_cast<double>(spec.expert_layers()),
                      .z = experts.loss.z};
    }
    return std::make_unique<Router>(logits(builder), options);
  }

  static std::unique_ptr<RouterLogits> logits(const BranchBuilder& builder) {
    const ModelSpec& spec = builder.spec();
    const ExpertsSpec& experts = *spec.experts;
    const auto made = [&](const char* name, const Shape& shape, Init init) {
      return make_parameter(builder.named(experts.router) + name, shape, init,
                            builder.tensor().used_apart());
    };
    const Init normal{Init::Kind::normal, spec.init_stddev}, zeros{Init::Kind::zeros};
    const std::int64_t inner = experts.cosine_width;
    if (inner == 0) {
      return std::make_unique<LinearLogits>(made(".weight", {experts.count, spec.hidden}, normal));
    }
    return std::make_unique<CosineLogits>(CosineLogits::Parameters{
        .projection = made(".cosine_projector.weight", {inner, spec.hidden}, normal),
        .bias = made(".cosine_projector.bias", {inner}, zeros),
        .rows = made(".weight", {experts.count, inner}, normal),
        .warmth = made(".warmth", {1}, zeros)});
  }

  static std::shared_ptr<Parameter> bias(const BranchBuilder& builder, std::int64_t layer) {
    const ExpertsSpec& experts = *builder.spec().experts;
    auto made = make_parameter(builder.named(experts.bias), {experts.count}, {Init::Kind::zeros},
                               builder.tensor().used_apart());
    made->balances = layer;
    return made;
  }

  static Experts::Weights weights(const BranchBuilder& builder) {
    const ModelSpec& spec = builder.spec();
    const ExpertsSpec& experts = *spec.experts;
    const ExpertRanks* const ranks = builder.experts();
    Cut own;
    std::int64_t here = experts.count, first = 0;
    if (ranks == nullptr) {
      own = builder.tensor().cut(experts.width, 1);
    } else {
      own.size = experts.width / ranks->etp->size();
      own.begin = own.size * ranks->etp->rank();
      here = experts.count / ranks->ep->size();
      first = here * ranks->ep->rank();
    }
    std::vector<BranchBuilder::Matrix> ups, downs;
    for (std::int64_t expert = first; expert < first + here; ++expert) {
      for (const std::string& pattern : {experts.gate, experts.up}) {
        ups.push_back({builder.named(pattern, expert),
                       {experts.width, spec.hidden},
                       {own.begin, 0},
                       {own.size, spec.hidden}});
      }
      downs.push_back({builder.named(experts.down, expert),
                       {spec.hidden, experts.width},
                       {0, own.begin},
                       {spec.hidden, own.size}});
    }
    // Other ranks of ep have other tensors, those of etp other parts of the same ones.
    const auto layout = [&](int width_dim) {
      if (ranks == nullptr) return builder.tensor().divided(width_dim);
      return whole_on_stage(View::experts)
          .with(Axis::ep, alone())
          .with(Axis::etp, shard(width_dim));
    };
    return {.up = builder.stacked(ups, layout(0), spec.init_stddev),
            .down = builder.stacked(downs, layout(1), builder.output_stddev())};
  }

  /// Where experts are divided, tp ranks share the tokens, so each has the whole shared expert.
  static std::unique_ptr<Mlp> shared(const BranchBuilder& builder) {
    const ExpertsSpec& experts = *builder.spec().experts;
    if (experts.shared_width == 0) return nullptr;
    const auto made = builder.experts() != nullptr ? &BranchBuilder::gated_mlp_by_token
                                                   : &BranchBuilder::gated_mlp;
    return (builder.*made)(experts.shared_gate, experts.shared_up, experts.shared_down,
                           experts.shared_width);
  }
};

}  // namespace

std::unique_ptr<BranchKind> experts_kind() { return std::make_unique<ExpertsKind>(); }

}  // namespace heddle
