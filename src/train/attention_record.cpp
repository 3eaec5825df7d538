#include "train/attention_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "comm/agree.h"
#include "parallel/sequence/context_plan.h"
#include "train/context_choices.h"

namespace heddle {
namespace {

/// One layer on one rank in the mean step, as ranks send it.
struct LayerOfRank {
  double is_here, seconds_f, seconds_b, exposed_f, exposed_b, pairs;
};
constexpr std::size_t kNumbers = sizeof(LayerOfRank) / sizeof(double);

/// What each rank of cp does in a layer in one step, as far as it is known beforehand.
class Expected {
 public:
  explicit Expected(const RunSetup& setup)
      : by_block_(setup.predicted_attention),
        microbatches_(static_cast<double>(setup.config.accumulation())) {
    ContextShape shape = microbatch_shape(setup.config, setup.spec, setup.plan);
    for (const BlockSpec& block : setup.spec.blocks) {
      shape.window = block.window;
      const ContextPlan plan = make_context_plan(shape);
      std::vector<double>& pairs = pairs_.emplace_back();
      for (const RankCounts& counts : count_by_rank(plan.forward, plan.shape)) {
        pairs.push_back(microbatches_ * static_cast<double>(counts.head_pairs));
      }
    }
  }

  bool has_times() const { return !by_block_.empty(); }
  double pairs(std::size_t layer, int cp_rank) const {
    return pairs_[layer % pairs_.size()][static_cast<std::size_t>(cp_rank)];
  }
  observe::AttentionRankRow::Predicted times(std::size_t layer, int cp_rank) const {
    const planner::PredictedAttention& rank = block(layer)[static_cast<std::size_t>(cp_rank)];
    return {.computed = microbatches_ * rank.computed,
            .exposed = microbatches_ * (rank.exposed_f + rank.exposed_b)};
  }
  /// The mean of all ranks.
  observe::PassSeconds exposed(std::size_t layer) const {
    observe::PassSeconds mean;
    const double share = microbatches_ / static_cast<double>(block(layer).size());
    for (const planner::PredictedAttention& rank : block(layer)) {
      mean.forward += share * rank.exposed_f;
      mean.backward += share * rank.exposed_b;
    }
    return mean;
  }

 private:
  const planner::AttentionByRank& block(std::size_t layer) const {
    return by_block_[layer % by_block_.size()];
  }

  const std::vector<planner::AttentionByRank>& by_block_;  // none without a machine file
  double microbatches_;
  std::vector<std::vector<double>> pairs_;  // by block that the model repeats, then by rank
};

using AllRanks = std::span<const LayerOfRank>;  // layers of a rank lie together

std::optional<observe::AttentionLayerRow> layer_row(AllRanks all, std::size_t layers,
                                                    std::size_t layer, const Expected& expected) {
  observe::AttentionLayerRow row{.layer = static_cast<int>(layer)};
  double ranks = 0;
  for (std::size_t at = layer; at < all.size(); at += layers) {
    ranks += all[at].is_here;
    row.exposed.forward += all[at].exposed_f;
    row.exposed.backward += all[at].exposed_b;
    row.most = std::max(row.most, all[at].exposed_f + all[at].exposed_b);
  }
  if (ranks == 0) return std::nullopt;
  row.exposed.forward /= ranks;
  row.exposed.backward /= ranks;
  if (expected.has_times()) row.predicted = expected.exposed(layer);
  return row;
}

observe::AttentionRankRow rank_row(AllRanks own, int rank, int cp_rank, const Expected& expected) {
  observe::AttentionRankRow row{.rank = rank};
  double pairs = 0, predicted_pairs = 0;
  observe::AttentionRankRow::Predicted predicted;
  for (std::size_t at = 0; at < own.size(); ++at) {
    const LayerOfRank& layer = own[at];
    pairs += layer.pairs;
    row.exposed += layer.exposed_f + layer.exposed_b;
    row.computed += layer.seconds_f + layer.seconds_b - layer.exposed_f - layer.exposed_b;
    if (layer.is_here == 0) continue;
    predicted_pairs += expected.pairs(at, cp_rank);
    if (!expected.has_times()) continue;
    const auto [computed, exposed] = expected.times(at, cp_rank);
    predicted.computed += computed;
    predicted.exposed += exposed;
  }
  row.pairs = std::llround(pairs);
  row.predicted_pairs = std::llround(predicted_pairs);
  if (expected.has_times()) row.predicted = predicted;
  return row;
}

void find_idle(std::vector<observe::AttentionRankRow>& rows, const MeshShape& mesh) {
  for (observe::AttentionRankRow& row : rows) {
    double slowest = 0;
    for (const int rank : mesh.group({Axis::cp}, row.rank)) {
      const observe::AttentionRankRow& other = rows[static_cast<std::size_t>(rank)];
      slowest = std::max(slowest, other.computed + other.exposed);
    }
    row.idle = slowest - row.computed;
  }
}

/// Of all ranks.
std::vector<LayerOfRank> gather_layers(const std::vector<LayerOfRank>& own, World& world) {
  std::vector<double> numbers(own.size() * kNumbers);
  std::memcpy(numbers.data(), own.data(), own.size() * sizeof(LayerOfRank));
  const std::vector<double> gathered = numbers_of_all(world, numbers);
  std::vector<LayerOfRank> all(own.size() * static_cast<std::size_t>(world.size()));
  std::memcpy(all.data(), gathered.data(), all.size() * sizeof(LayerOfRank));
  return all;
}

}  // namespace

void AttentionRecord::begin_step() {
  if (AttentionMeter* meter = session_.model.attention_meter()) meter->start();
}

void AttentionRecord::end_step() {
  AttentionMeter* meter = session_.model.attention_meter();
  if (meter == nullptr) return;
  if (++steps_ == 2) by_layer_.clear();
  for (const auto& [layer, times] : meter->take()) {
    AttentionTimes& sum = by_layer_[layer];
    for (std::size_t pass = 0; pass < times.seconds.size(); ++pass) {
      sum.seconds[pass] += times.seconds[pass];
      sum.exposed[pass] += times.exposed[pass];
    }
    sum.head_pairs += times.head_pairs;
  }
}

std::optional<observe::AttentionFigures> AttentionRecord::gather() const {
  if (steps_ == 0) return std::nullopt;
  const auto layers = static_cast<std::size_t>(setup_.spec.layers);
  const double steps = std::max(1, steps_ - 1);
  std::vector<LayerOfRank> own(layers);
  for (const auto& [layer, times] : by_layer_) {
    own[static_cast<std::size_t>(layer)] = {.is_here = 1,
                                            .seconds_f = times.seconds[0] / steps,
                                            .seconds_b = times.seconds[1] / steps,
                                            .exposed_f = times.exposed[0] / steps,
                                            .exposed_b = times.exposed[1] / steps,
                                            .pairs = static_cast<double>(times.head_pairs) / steps};
  }
  const std::vector<LayerOfRank> gathered = gather_layers(own, setup_.placed);
  const AllRanks all(gathered);
  const Expected expected(setup_);
  const ContextShape shape = resolved(setup_.plan.context_shape(setup_.spec));
  observe::AttentionFigures figures{
      .method = std::string(name_of(shape.method)),
      .order = std::string(name_of(shape.order)),
      .cp = shape.ranks,
      .has_documents = setup_.config.data.documents == config::Documents::mask,
      .is_timed = session_.stream.device().kind == Device::Kind::cpu};
  for (std::size_t layer = 0; layer < layers; ++layer) {
    if (auto made = layer_row(all, layers, layer, expected)) figures.layers.push_back(*made);
  }
  for (int rank = 0; rank < setup_.placed.size(); ++rank) {
    const AllRanks of_rank = all.subspan(static_cast<std::size_t>(rank) * layers, layers);
    const int cp_rank = setup_.plan.mesh.coord(Axis::cp, rank);
    figures.ranks.push_back(rank_row(of_rank, rank, cp_rank, expected));
  }
  find_idle(figures.ranks, setup_.plan.mesh);
  return figures;
}

std::string describe(const observe::AttentionFigures& figures) {
  double mean = 0;
  const observe::AttentionRankRow* most = &figures.ranks.front();
  for (const observe::AttentionRankRow& row : figures.ranks) {
    mean += row.exposed / static_cast<double>(figures.ranks.size());
    if (row.exposed > most->exposed) most = &row;
  }
  return fmt::format(
      "attention over cp waited {:.1f} % of its time for messages, {:.3g} s a step (rank {}: "
      "{:.3g} s)",
      100 * figures.exposed_fraction(), mean, most->rank, most->exposed);
}

}  // namespace heddle
