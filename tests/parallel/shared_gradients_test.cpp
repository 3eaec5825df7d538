// What ranks of tp and of a pipeline's ends share: gradients are summed over those that hold a
// parameter, the norm counts every element once, and one rank writes each.

#include <array>
#include <tuple>

#include "comm/threads/thread_world.h"
#include "parallel/store_testing.h"

namespace heddle {
namespace {

double counted_squares(const ParamStore& store, Stream& stream) {
  Memory memory;
  const Tensor sum = memory.zeros({1}, DType::f64, MemoryTag::workspace);
  store.add_counted_squares(sum, stream);
  return sum.host<double>()[0];
}

constexpr std::int64_t kWidth = 5;

Layout on_tp(Placement placement) { return whole_on_stage().with(Axis::tp, placement); }

/// Rows [begin, begin + size) of a whole, from row `at` on.
Parameter::Part rows(const std::string& name, std::int64_t whole, std::int64_t begin,
                     std::int64_t at, std::int64_t size) {
  return {name, {whole, kWidth}, {begin, 0}, {at, 0}, {size, kWidth}};
}

/// One rank's share of a model on `tp` ranks with `key_heads` heads of 3 rows: a table whose
/// vocabulary of 4 * tp - 1 rows is padded, norms and positions that every rank uses on its own
/// tokens, a bias behind a sum, and a projection of queries (2 rows per rank), keys and values,
/// with a bias that is shorter than what parameters are padded to and another one behind it.
Holders divided_units(int tp, int rank, int key_heads) {
  auto table = std::make_shared<Parameter>();
  const std::int64_t vocab = 4 * tp - 1;
  table->shape = {4, kWidth};
  table->parts = {rows("table", vocab, 4 * rank, 0, rank + 1 < tp ? 4 : 3)};
  table->layout = on_tp(shard(0));

  auto qkv = std::make_shared<Parameter>();
  const int copies = tp / key_heads, head = rank / copies;
  qkv->shape = {2 + 3 + 3, kWidth};
  qkv->parts = {rows("q", 2 * tp, 2 * rank, 0, 2), rows("k", 3 * key_heads, 3 * head, 2, 3),
                rows("v", 3 * key_heads, 3 * head, 5, 3)};
  qkv->layout = on_tp(shard(0));
  qkv->tail = {2,
               whole_on_stage(View::keys).with(Axis::kv, shard(0)).with(Axis::copy, replicate())};

  auto qkv_bias = std::make_shared<Parameter>();
  qkv_bias->shape = {2 + 3 + 3};
  qkv_bias->parts = {{"q bias", {2 * tp}, {2 * rank}, {0}, {2}},
                     {"k bias", {3 * key_heads}, {3 * head}, {2}, {3}},
                     {"v bias", {3 * key_heads}, {3 * head}, {5}, {3}}};
  qkv_bias->layout = qkv->layout;
  qkv_bias->tail = qkv->tail;
  auto up_bias = std::make_shared<Parameter>();
  up_bias->shape = {3};
  up_bias->parts = {{"up bias", {3 * tp}, {3 * rank}, {0}, {3}}};
  up_bias->layout = on_tp(shard(0));

  auto positions = parameter("positions", {3, 7});
  positions->layout = on_tp(replicate());
  auto norm = parameter("norm", {7});
  norm->layout = on_tp(replicate());
  auto other_norm = parameter("other norm", {9});
  other_norm->layout = on_tp(replicate());
  auto bias = parameter("bias", {11});
  bias->layout = on_tp(invariant());

  Holders units;
  units.push_back(std::make_unique<Holder>(std::vector{table}));
  units.push_back(std::make_unique<Holder>(
      std::vector{norm, qkv, qkv_bias, up_bias, positions, bias, other_norm}));
  return units;
}

/// Whole numbers: sums are exact.
float contribution(int source, const std::string& name, std::size_t index) {
  return static_cast<float>(random_u64(rng_key(static_cast<std::uint64_t>(source), name), index) %
                            41) -
         20.0F;
}

void one_step(ParamStore& store, const Holders& units, int source, Stream& stream) {
  walk_gradients(store, stream, [&](int unit) {
    for (const auto& p : units[static_cast<std::size_t>(unit)]->own()) {
      // Where all ranks compute the same, they do: the source is then that of tp rank 0.
      const bool is_invariant = p->layout.on(Axis::tp) == invariant();
      contribute(*p, [&](const std::string& name, std::size_t index) {
        return contribution(is_invariant ? source / 10 * 10 : source, name, index);
      });
    }
  });
}

struct TpSetup {
  int dp, tp, key_heads, zero;
};

/// The gradients of the whole model: what every rank that holds an element contributes to it, and
/// what ranks of tp all compute, once.
std::map<std::string, std::vector<float>> expected(const TpSetup& setup) {
  std::map<std::string, std::vector<float>> sums;
  for (int dp = 0; dp < setup.dp; ++dp) {
    for (int tp = 0; tp < setup.tp; ++tp) {
      for (const auto& unit : divided_units(setup.tp, tp, setup.key_heads)) {
        for (const auto& p : unit->own()) {
          if (p->layout.on(Axis::tp) == invariant() && tp > 0) continue;
          for (const Parameter::Part& part : p->parts) {
            auto& sum = sums[part.name];
            sum.resize(static_cast<std::size_t>(part.whole.count()));
            for_elements(*p, part, [&](std::size_t, std::size_t index) {
              sum[index] += contribution(10 * dp + tp, part.name, index);
            });
          }
        }
      }
    }
  }
  return sums;
}

double squares_of(const std::map<std::string, std::vector<float>>& tensors) {
  double sum = 0.0;
  for (const auto& [name, values] : tensors) {
    for (const float value : values) sum += static_cast<double>(value) * value;
  }
  return sum;
}

TEST(SharedGradients, AreSummedAndCountedOnceOnEveryMesh) {
  for (const auto& [dp, tp, key_heads] :
       {std::tuple{1, 2, 2}, {1, 4, 2}, {1, 4, 1}, {2, 2, 1}, {2, 2, 2}, {2, 4, 2}, {3, 2, 1}}) {
    for (int zero = 0; zero <= 3; ++zero) {
      const TpSetup setup{dp, tp, key_heads, zero};
      SCOPED_TRACE(testing::Message() << "dp " << dp << " tp " << tp << " key heads " << key_heads
                                      << " zero " << zero);
      const MeshShape shape =
          MeshShape{}.with(Axis::dp, dp).with(Axis::tp, tp).with(Axis::copy, tp / key_heads);
      Collected grads, values;
      std::mutex mutex;
      double squares = 0.0;
      run_ranks(shape.ranks(), [&](World& world) {
        const Mesh mesh(shape, world.all());
        Memory memory;
        Stream stream(1);
        const Holders units = divided_units(tp, mesh.coord(Axis::tp), key_heads);
        ParamStore store(pointers(units), {.zero = zero}, mesh, memory);
        initialize(store, 23, stream);
        for (int step = 0; step < 2; ++step) {  // what a step leaves is not seen by the next
          one_step(store, units, 10 * mesh.coord(Axis::dp) + mesh.coord(Axis::tp), stream);
        }
        grads.add(store.grad_pieces());
        values.add(store.value_pieces());
        const double own = counted_squares(store, stream);
        const std::lock_guard lock(mutex);
        squares += own;
      });
      const auto want = expected(setup);
      EXPECT_EQ(grads.tensors(), want);
      EXPECT_EQ(squares, squares_of(want));
      EXPECT_EQ(values.tensors().size(), want.size());
    }
  }
}

TEST(SharedGradients, EveryMeshStartsFromTheSameWeights) {
  const auto initial = [](int dp, int tp, int zero) {
    MeshShape shape = MeshShape{}.with(Axis::dp, dp).with(Axis::tp, tp);
    Collected values;
    run_ranks(shape.ranks(), [&](World& world) {
      const Mesh mesh(shape, world.all());
      Memory memory;
      Stream stream(1);
      // Columns instead of rows: what a product divided by its inputs has.
      auto weight = std::make_shared<Parameter>();
      const std::int64_t own = 12 / tp;
      weight->shape = {7, own};
      weight->parts = {{"down", {7, 12}, {0, own * mesh.coord(Axis::tp)}, {0, 0}, {7, own}}};
      weight->layout = on_tp(shard(1));
      const auto norm = parameter("norm", {9}, {Init::Kind::ones});
      Holder unit({weight, norm});
      const std::vector<Layer*> units = {&unit};
      ParamStore store(units, {.zero = zero}, mesh, memory);
      initialize(store, 23, stream);
      values.add(store.value_pieces());
    });
    return values.tensors();
  };
  const auto want = initial(1, 1, 0);
  EXPECT_EQ(want.at("norm"), std::vector<float>(9, 1.0F));
  for (const auto& [dp, tp] : {std::pair{1, 2}, {2, 1}, {2, 2}, {3, 1}, {1, 4}, {2, 4}}) {
    for (int zero = 0; zero <= 3; ++zero) {
      EXPECT_EQ(initial(dp, tp, zero), want) << "dp " << dp << " tp " << tp << " zero " << zero;
    }
  }
}

/// The two ends of a pipeline have a copy of the tied table each, or one rank has both.
void expect_tied(int pp, std::array<int, 2> ends, int dp, int zero) {
  SCOPED_TRACE(testing::Message() << "pp " << pp << " ends " << ends[0] << " " << ends[1] << " dp "
                                  << dp << " zero " << zero);
  MeshShape shape = MeshShape{}.with(Axis::pp, pp).with(Axis::dp, dp);
  shape.ends = ends;
  Collected grads;
  std::mutex mutex;
  double squares = 0.0;
  run_ranks(shape.ranks(), [&](World& world) {
    const Mesh mesh(shape, world.all());
    Memory memory;
    Stream stream(1);
    Holders units;
    const int stage = mesh.coord(Axis::pp);
    const auto add_table = [&](Parameter::Tie tie) {
      auto table = parameter("table", {7, 5});
      table->tie = tie;
      table->layout = whole_on_stage().with(Axis::pp, heddle::ends());
      units.push_back(std::make_unique<Holder>(std::vector{table}));
    };
    if (stage == ends[0]) add_table(Parameter::Tie::first);
    units.push_back(
        std::make_unique<Holder>(std::vector{parameter("block " + std::to_string(stage), {4, 4})}));
    if (stage == ends[1]) add_table(Parameter::Tie::last);
    ParamStore store(pointers(units), {.zero = zero}, mesh, memory);
    // The table's two gradients come from different sources: 1, 2, ... and 101, 102, ...
    walk_gradients(store, stream, [&](int unit) {
      const auto& p = units[static_cast<std::size_t>(unit)]->own()[0];
      contribute(*p, [&](const std::string& name, std::size_t index) {
        const int base = p->tie == Parameter::Tie::last ? 101 : 1;
        return contribution(base + mesh.coord(Axis::dp), name, index);
      });
    });
    const double own = counted_squares(store, stream);
    grads.add(store.grad_pieces());
    const std::lock_guard lock(mutex);
    squares += own;
  });
  std::map<std::string, std::vector<float>> want;
  for (int rank = 0; rank < dp; ++rank) {
    auto& table = want["table"];
    table.resize(35);
    for (std::size_t i = 0; i < 35; ++i) {
      table[i] += contribution(1 + rank, "table", i) + contribution(101 + rank, "table", i);
    }
    for (int stage = 0; stage < pp; ++stage) {
      const std::string name = "block " + std::to_string(stage);
      auto& block = want[name];
      block.resize(16);
      for (std::size_t i = 0; i < 16; ++i) block[i] += contribution(1 + rank, name, i);
    }
  }
  EXPECT_EQ(grads.tensors(), want);
  EXPECT_EQ(squares, squares_of(want));
}

TEST(SharedGradients, OfTiedEmbeddingsAreSummedOverTheEndsOfThePipeline) {
  for (int zero = 0; zero <= 3; ++zero) {
    expect_tied(2, {0, 1}, 1, zero);
    expect_tied(3, {0, 2}, 1, zero);
    expect_tied(2, {0, 1}, 2, zero);
    expect_tied(3, {0, 2}, 2, zero);
  }
}

TEST(SharedGradients, OfTiedEmbeddingsAreSummedWhereOneRankHasBothEnds) {
  for (int zero = 0; zero <= 3; ++zero) {
    expect_tied(2, {0, 0}, 1, zero);
    expect_tied(2, {0, 0}, 3, zero);
  }
}

}  // namespace
}  // namespace heddle
