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
    layers.push_back(builder.norm(spec.names.mlp_norm));
    is_divided ? tensor.share_tokens(layers, spec.hidden) : tensor.enter(layers, spec.hidden);
    ExpertDivision division;
    if (is_divided) {
      division = {
          .exchange = std::make_unique<ExpertExchange>(*builder.experts(), spec.experts->count),
          .tokens = {tensor.rank(), tensor.ranks()},
          .ends_branch = !tensor.divides() || tensor.splits_tokens()};
    }
    layers.push_back(std::make_unique<Experts>(router(builder), weights(builder), shared(builder),
                                               std::move(division)));
    is_divided ? tensor.join_tokens(layers, spec.hidden) : tensor.leave(layers, spec.hidden);
    return layers;
  }

  std::string refuse_tp(const ModelSpec& spec, std::int64_t tp) const override {
    for (const std::int64_t width : {spec.experts->width, spec.experts->shared_width}) {
      if (width % tp != 0) return fmt::format("does not divide the experts' width = {}", width);
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
    Router::Options options{.per_token = experts.per_token, .rule = experts.rule};
    if (builder.context() != nullptr) options.sharers.push_back(builder.context());
    if (is_divided && builder.tensor().divides())
      options.sharers.push_back(builder.tensor().comm());
    if (is_divided || builder.tensor().rank() == 0) {
      options.loss = {.balance = experts.loss.balance / static_cast<double>(spec.expert_layers()),
                      .z = experts.loss.z};
    }
    return std::make_unique<Router>(
        make_parameter(builder.named(experts.router) + ".weight", {experts.count, spec.hidden},
                       {Init::Kind::normal, spec.init_stddev}, builder.tensor().used_apart()),
        options);
  }

  static Experts::Weights weights(const BranchBuilder& builder) {
    const ModelSpec& spec = builder.spec();
    const ExpertsSpec& experts = *spec.experts;
    const Communicator* const others = builder.experts();
    const Cut own =
        others == nullptr ? builder.tensor().cut(experts.width, 1) : Cut{0, experts.width};
    const std::int64_t here = others == nullptr ? experts.count : experts.count / others->size(),
                       first = others == nullptr ? 0 : here * others->rank();
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
    const Layout by_expert = whole_on_stage(View::experts).with(Axis::ep, shard(0));
    const auto layout = [&](int width_dim) {
      return others == nullptr ? builder.tensor().divided(width_dim) : by_expert;
    };
    return {.up = builder.stacked(ups, layout(0), spec.init_stddev),
            .down = builder.stacked(downs, layout(1), builder.output_stddev())};
  }

  static std::unique_ptr<Mlp> shared(const BranchBuilder& builder) {
    const ExpertsSpec& experts = *builder.spec().experts;
    if (experts.shared_width == 0) return nullptr;
    return builder.gated_mlp(experts.shared_gate, experts.shared_up, experts.shared_down,
                             experts.shared_width);
  }
};

}  // namespace

std::unique_ptr<BranchKind> experts_kind() { return std::make_unique<ExpertsKind>(); }

}  // namespace heddle
