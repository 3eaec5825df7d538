#include "engine/renumber_experts.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file_system.h"
#include "checkpoint/model_source.h"
#include "engine/engine_testing.h"
#include "engine/weights.h"
#include "model/config_testing.h"
#include "parallel/experts/expert_placement.h"
#include "support/temporary_folder.h"

namespace heddle {
namespace {

/// A folder of random weights, with a tensor for each expert or, as transformers 5 may write them,
/// one for all of a layer.
class ExpertsFolder {
 public:
  explicit ExpertsFolder(const ModelSpec& spec, bool is_stacked = false) : spec_(spec) {
    Stream stream(1);
    Model model(spec, {.positions = 16}, ParamStore::Purpose::inference, memory_);
    initialize(model.store(), 3, stream);
    for (const ParamPiece& piece : model.store().value_pieces()) {
      add(piece.part->name, {piece.data}, piece.data.shape().sizes());
    }
    if (is_stacked) stack();
    std::vector<TensorSpec> specs;
    for (const auto& [name, written] : tensors_) specs.push_back(written.spec);
    HfFolderWriter writer(real_file_system(), folder_.path(), specs);
    for (const TensorSpec& wanted : writer.order()) {
      for (const Tensor& part : tensors_.at(wanted.name).parts) {
        writer.append(wanted.name, std::as_bytes(part.host<float>()));
      }
    }
    writer.finish();
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  struct Written {
    TensorSpec spec;
    std::vector<Tensor> parts;  ///< one behind the other
  };
  void add(const std::string& name, std::vector<Tensor> parts,
           std::span<const std::int64_t> sizes) {
    tensors_[name] = {{name, "F32", {sizes.begin(), sizes.end()}}, std::move(parts)};
  }
  Tensor take(const std::string& name) {
    const Tensor tensor = tensors_.at(name).parts.front();
    tensors_.erase(name);
    return tensor;
  }
  void stack() {
    const ExpertsSpec& experts = *spec_.experts;
    const std::int64_t E = experts.count, F = experts.width, D = spec_.hidden;
    for (std::int64_t layer = 0; layer < spec_.layers; ++layer) {
      const auto named = [&](const std::string& pattern, auto... more) {
        return fmt::format(fmt::runtime(pattern), layer, more...);
      };
      std::vector<Tensor> ups, downs;
      for (std::int64_t expert = 0; expert < E; ++expert) {
        ups.push_back(take(named(experts.gate, expert) + ".weight"));
        ups.push_back(take(named(experts.up, expert) + ".weight"));
        downs.push_back(take(named(experts.down, expert) + ".weight"));
      }
      add(named(experts.stacked_up), ups, std::vector{E, 2 * F, D});
      add(named(experts.stacked_down), downs, std::vector{E, D, F});
      add(named(experts.stacked_router), {take(named(experts.router) + ".weight")},
          std::vector{E, D});
    }
  }

  const ModelSpec& spec_;
  Memory memory_;
  std::map<std::string, Written> tensors_;
  TemporaryFolder folder_;
};

std::vector<float> logits_of(const ModelSpec& spec, const std::filesystem::path& folder) {
  Memory memory;
  Stream stream(1);
  Model model(spec, {.positions = 16}, ParamStore::Purpose::inference, memory);
  load_weights(HfFolder(folder), spec, model.store(), stream);
  const MicroBatch batch = plain_batch(random_ids(3, 16, spec.vocab, 9, memory), {}, 0, memory);
  const Tensor logits = model.logits(batch, false, nullptr, stream, memory);
  const auto values = logits.host<float>();
  return {values.begin(), values.end()};
}

/// The token that each row of logits would give.
std::vector<std::ptrdiff_t> greedy(const std::vector<float>& logits, std::int64_t vocab) {
  std::vector<std::ptrdiff_t> tokens;
  for (auto row = logits.begin(); row != logits.end(); row += vocab) {
    tokens.push_back(std::max_element(row, row + vocab) - row);
  }
  return tokens;
}

/// Norm of the difference over the norm.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0.0, all = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart += (1.0 * a[i] - b[i]) * (1.0 * a[i] - b[i]);
    all += 1.0 * a[i] * a[i];
  }
  return std::sqrt(apart / all);
}

/// Each layer another order.
std::vector<std::vector<int>> orders_of(const ModelSpec& spec) {
  std::vector<std::vector<int>> orders;
  for (std::int64_t layer = 0; layer < spec.expert_layers(); ++layer) {
    const auto count = static_cast<int>(spec.experts->count);
    std::vector<int> ranks;
    for (int expert = 0; expert < count; ++expert) {
      ranks.push_back((expert * 5 + static_cast<int>(layer)) % count % 2);
    }
    orders.push_back(renumbering_of({.ranks = 2, .rank_of = {ranks}}).front());
  }
  return orders;
}

std::string content_of(const std::filesystem::path& folder, const std::string& name) {
  const ModelSource source(folder);
  Memory memory;
  const auto content = source.weights().content(name, memory);
  return {reinterpret_cast<const char*>(content.bytes.data()), content.bytes.size()};
}

/// A softmax adds exponentials in the order of numbers, so its last bit may change. Sigmoids are
/// each for themselves.
TEST(RenumberExperts, LogitsStayTheSame) {
  for (const char* family : {"heddle_moe", "mixtral", "olmoe", "qwen3_moe"}) {
    const ModelSpec spec = spec_of(small_config(family));
    const ExpertsFolder before(spec);
    const TemporaryFolder parent;
    const auto after = parent.path() / "renumbered";
    const auto orders = orders_of(spec);
    const auto origins = renumbered_experts(spec, ModelSource(before.path()).weights(), orders);
    convert(real_file_system(), before.path(), after, {.origins = origins});
    const auto expected = logits_of(spec, before.path()), found = logits_of(spec, after);
    if (spec.experts->rule.score == ops::RouterRule::Score::sigmoid) {
      EXPECT_TRUE(expected == found) << family;
    }
    EXPECT_LT(difference(expected, found), 1e-6) << family;
    EXPECT_EQ(greedy(expected, spec.vocab), greedy(found, spec.vocab)) << family;

    // Experts did move: number 0 of layer 1 has the matrices, and the row, of another.
    const int old = orders[1][0];
    ASSERT_NE(old, 0);
    const auto named = [&](const std::string& pattern, int expert) {
      return fmt::format(fmt::runtime(pattern), 1, expert) + ".weight";
    };
    EXPECT_EQ(content_of(after, named(spec.experts->down, 0)),
              content_of(before.path(), named(spec.experts->down, old)));
    const std::string router = fmt::format(fmt::runtime(spec.experts->router), 1) + ".weight";
    const auto row = static_cast<std::size_t>(spec.hidden) * sizeof(float);
    EXPECT_EQ(content_of(after, router).substr(0, row),
              content_of(before.path(), router).substr(static_cast<std::size_t>(old) * row, row));
  }
}

/// Of routers by cosines: projection and temperature are of all experts, also where the projection
/// has as many rows as there are experts.
TEST(RenumberExperts, MovesOnlyTheRowsOfCosines) {
  const auto experts = small_config("heddle_moe").at("num_experts").get<std::int64_t>();
  for (const std::int64_t width : {std::int64_t{16}, experts}) {
    const ModelSpec spec = spec_of(with(
        small_config("heddle_moe"), {{"cosine_router_dim", width}, {"topk_method", "noaux_tc"}}));
    const ExpertsFolder before(spec);
    const TemporaryFolder parent;
    const auto after = parent.path() / "renumbered";
    convert(real_file_system(), before.path(), after,
            {.origins =
                 renumbered_experts(spec, ModelSource(before.path()).weights(), orders_of(spec))});
    EXPECT_LT(difference(logits_of(spec, before.path()), logits_of(spec, after)), 1e-6) << width;
  }
}

TEST(RenumberExperts, StackedTensorsChangeTheOrderOfTheirMatrices) {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    const ModelSpec spec = spec_of(small_config(family));
    const ExpertsFolder apart(spec), stacked(spec, true);
    const TemporaryFolder parent;
    const auto orders = orders_of(spec);
    for (const auto& [from, to] : {std::pair{apart.path(), parent.path() / "apart"},
                                   std::pair{stacked.path(), parent.path() / "stacked"}}) {
      convert(real_file_system(), from, to,
              {.origins = renumbered_experts(spec, ModelSource(from).weights(), orders)});
    }
    EXPECT_TRUE(logits_of(spec, parent.path() / "apart") ==
                logits_of(spec, parent.path() / "stacked"))
        << family;
  }
}

/// Only matrices: the router then sends tokens to the wrong ones.
TEST(RenumberExperts, RowsOfRoutersHaveToMoveAlong) {
  const ModelSpec spec = spec_of(small_config("olmoe"));
  const ExpertsFolder before(spec);
  const TemporaryFolder parent;
  auto origins = renumbered_experts(spec, ModelSource(before.path()).weights(), orders_of(spec));
  std::erase_if(origins, [](const auto& origin) { return !origin.second.rows.empty(); });
  convert(real_file_system(), before.path(), parent.path() / "wrong", {.origins = origins});
  EXPECT_GT(difference(logits_of(spec, before.path()), logits_of(spec, parent.path() / "wrong")),
            1e-2);
}

TEST(RenumberExperts, RefusesModelsThatThePlacementIsNotOf) {
  const ModelSpec spec = spec_of(small_config("olmoe")), dense = spec_of(small_config("llama"));
  const ExpertsFolder folder(spec);
  const ModelSource source(folder.path());
  const auto refusal = [&](const ModelSpec& model, const std::vector<std::vector<int>>& orders) {
    try {
      renumbered_experts(model, source.weights(), orders);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no refusal");
  };
  EXPECT_NE(refusal(dense, {}).find("no experts"), std::string::npos);
  EXPECT_NE(refusal(spec, {{0, 1}}).find("1 layers with 2 experts"), std::string::npos)
      << refusal(spec, {{0, 1}});
  ModelSpec grouped = spec;
  grouped.experts->rule.groups = 2;
  EXPECT_NE(refusal(grouped, orders_of(spec)).find("2 groups"), std::string::npos);
  ModelSpec other = spec;
  other.experts->down = "model.layers.{}.mlp.experts.{}.other";
  EXPECT_NE(refusal(other, orders_of(spec)).find("experts.0.other.weight\" is missing"),
            std::string::npos)
      << refusal(other, orders_of(spec));
}

}  // namespace
}  // namespace heddle
