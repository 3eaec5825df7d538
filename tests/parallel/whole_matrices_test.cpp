#include "parallel/whole_matrices.h"

#include <algorithm>
#include <numeric>

#include "comm/threads/thread_world.h"
#include "parallel/store_testing.h"

namespace heddle {
namespace {

TEST(OwnersOf, SpreadsCostsEvenly) {
  const std::vector<double> costs = {4, 4, 1, 1, 8, 8, 8, 4, 4, 1, 1, 8, 8, 8};
  for (const int ranks : {1, 2, 3, 4}) {
    std::vector<double> loads(static_cast<std::size_t>(ranks), 0.0);
    const auto owners = owners_of(costs, ranks);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      loads.at(static_cast<std::size_t>(owners[i])) += costs[i];
    }
    const auto [least, most] = std::ranges::minmax(loads);
    EXPECT_LE(most - least, 8.0) << ranks << " ranks";
  }
  EXPECT_EQ(owners_of(costs, 3), owners_of(costs, 3));
}

TEST(GramCost, CountsTheProductsWithTheSmallerSide) {
  EXPECT_EQ(gram_cost({3, 5}), 9.0 * (2 * 5 + 3));
  EXPECT_EQ(gram_cost({5, 3}), gram_cost({3, 5}));
}

/// Rows of `name` that a tp rank has, of `whole` rows that `divisions` divide.
Parameter::Part rows_of(const std::string& name, std::int64_t whole, std::int64_t width, int of,
                        int divisions, std::int64_t at) {
  const std::int64_t own = whole / divisions;
  return {name, {whole, width}, {own * of, 0}, {at, 0}, {own, width}};
}

std::shared_ptr<Parameter> made_of(std::vector<Parameter::Part> parts, const Layout& layout) {
  auto made = std::make_shared<Parameter>();
  std::int64_t rows = 0;
  for (const auto& part : parts) rows += part.extent[0];
  made->shape = {rows, parts[0].extent[1]};
  made->parts = std::move(parts);
  made->layout = layout;
  made->is_inner = true;
  return made;
}

struct TestMesh {
  int dp, tp, copies, zero;
};

/// Units of a table, and of a stacked projection whose keys several tp ranks may hold, a matrix
/// divided by columns, one that every tp rank has whole, and a vector.
Holders units_on(const Mesh& mesh) {
  const int tp = mesh.size(Axis::tp), own = mesh.coord(Axis::tp);
  const int kv = mesh.size(Axis::kv), key = mesh.coord(Axis::kv);
  const Layout by_rows = whole_on_stage().with(Axis::tp, shard(0));
  Holders units;
  for (int i = 0; i < 5; ++i) {
    const std::string block = std::to_string(i);
    auto qkv = made_of(
        {rows_of("q" + block, 8, 5, own, tp, 0), rows_of("k" + block, 4, 5, key, kv, 8 / tp),
         rows_of("v" + block, 4, 5, key, kv, 8 / tp + 4 / kv)},
        by_rows);
    qkv->tail = {8 / tp,
                 whole_on_stage(View::keys).with(Axis::kv, shard(0)).with(Axis::copy, replicate())};
    auto down = made_of({{"down" + block, {3, 12}, {0, 12 / tp * own}, {0, 0}, {3, 12 / tp}}},
                        whole_on_stage().with(Axis::tp, shard(1)));
    auto router = made_of({{"router" + block, {4, 6}, {0, 0}, {0, 0}, {4, 6}}},
                          whole_on_stage().with(Axis::tp, invariant()));
    auto table = parameter("table" + block, {7, 3}), norm = parameter("norm" + block, {6});
    for (const auto& p : {table, norm}) p->layout = whole_on_stage().with(Axis::tp, invariant());
    units.push_back(std::make_unique<Holder>(std::vector{norm, table, qkv, down, router}));
  }
  return units;
}

/// An element's place in its matrix, so that one that is moved is seen.
float element(const std::string& name, std::size_t index) {
  return static_cast<float>(name[0]) + static_cast<float>(index) / 128.0F;
}

class WholeMatricesOn : public testing::TestWithParam<TestMesh> {};

TEST_P(WholeMatricesOn, EveryMatrixIsSeenWholeByOneRankAndReturnsToAllHolders) {
  const TestMesh& on = GetParam();
  Collected grads;
  std::mutex mutex;
  std::map<std::vector<float>, int> seen;  // matrices, and on how many ranks
  std::vector<double> work(static_cast<std::size_t>(on.dp * on.tp), 0.0);
  MeshShape shape = MeshShape{}.with(Axis::dp, on.dp).with(Axis::tp, on.tp);
  shape = shape.with(Axis::copy, on.copies);
  shape.joins_stages = on.zero > 0;
  run_ranks(on.dp * on.tp, [&](World& world) {
    const Mesh mesh(shape, world.all());
    Memory memory;
    Stream stream(1);
    const Holders units = units_on(mesh);
    ParamStore store(pointers(units), {.zero = on.zero}, mesh, memory);
    walk_gradients(store, stream, [&](int unit) {
      for (const auto& p : units[static_cast<std::size_t>(unit)]->own()) {
        // Sums over those that see other tokens, and over holders of the same keys, are exact.
        contribute(*p, [&](const std::string& name, std::size_t index) {
          const bool is_copied = name[0] == 'k' || name[0] == 'v';
          return element(name, index) / static_cast<float>(on.dp * (is_copied ? on.copies : 1));
        });
      }
    });
    const WholeMatrices matrices(store);
    matrices.replace_grads(
        [&](const Tensor& matrix) {
          const auto values = matrix.host<float>();
          const std::lock_guard lock(mutex);
          ++seen[{values.begin(), values.end()}];
          work[static_cast<std::size_t>(world.rank())] += gram_cost(matrix.shape());
          const Tensor doubled = memory.alloc(matrix.shape(), DType::f32, MemoryTag::workspace);
          std::ranges::transform(values, doubled.host<float>().begin(),
                                 [](float value) { return 2.0F * value; });
          return doubled;
        },
        stream);
    grads.add(store.grad_pieces());
    const auto live = memory.stats().live;
    EXPECT_EQ(live[static_cast<std::size_t>(MemoryTag::communication)], 0U);
    EXPECT_EQ(live[static_cast<std::size_t>(MemoryTag::workspace)], 0U);
  });
  for (const auto& [name, values] : grads.tensors()) {
    const bool is_inner = !name.starts_with("table") && !name.starts_with("norm");
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], (is_inner ? 2.0F : 1.0F) * element(name, i)) << name << " " << i;
    }
    if (!is_inner) continue;
    std::vector<float> before = values;
    for (float& value : before) value /= 2.0F;
    // Five blocks have the same values. Without ZeRO, and where tp ranks have it whole, each works
    // for itself.
    const int copies = (on.zero == 0 ? on.dp : 1) * (name.starts_with("router") ? on.tp : 1);
    EXPECT_EQ(seen[before], 5 * copies) << name;
  }
  EXPECT_EQ(seen.size(), 5U);
  const double least = on.zero > 0 ? std::ranges::min(work) : 1.0;
  EXPECT_GT(least, 0.0) << "a rank has nothing to do";
}

INSTANTIATE_TEST_SUITE_P(Meshes, WholeMatricesOn,
                         testing::Values(TestMesh{1, 1, 1, 0}, TestMesh{2, 1, 1, 0},
                                         TestMesh{2, 1, 1, 1}, TestMesh{3, 1, 1, 2},
                                         TestMesh{4, 1, 1, 3}, TestMesh{1, 2, 1, 0},
                                         TestMesh{1, 4, 2, 0}, TestMesh{2, 2, 1, 0},
                                         TestMesh{2, 2, 2, 1}, TestMesh{2, 4, 4, 3}),
                         [](const auto& info) {
                           const TestMesh& on = info.param;
                           return "dp" + std::to_string(on.dp) + "_tp" + std::to_string(on.tp) +
                                  "_copies" + std::to_string(on.copies) + "_zero" +
                                  std::to_string(on.zero);
                         });

}  // namespace
}  // namespace heddle
