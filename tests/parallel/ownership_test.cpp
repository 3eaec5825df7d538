// Who sums, divides, counts and writes a parameter, against an oracle that only compares
// coordinates: it knows which elements each rank holds and what each contributes to their gradient.

#include "parallel/ownership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "comm/threads/thread_world.h"
#include "mesh/mesh.h"
#include "parallel/store_testing.h"

namespace heddle {
namespace {

/// A mesh, how a parameter lies on it, and the ZeRO stage.
struct Setting {
  MeshShape shape;
  Layout layout;
  int zero = 0;
};

std::string describe(const Setting& setting) {
  std::string text;
  for (const Axis axis : axes_of(setting.layout.view)) {
    text += std::string(name_of(axis)) + " " + std::to_string(setting.shape.size(axis)) + ", ";
  }
  return text + to_text(setting.layout) + ", zero " + std::to_string(setting.zero);
}

class Draw {
 public:
  explicit Draw(unsigned seed) : engine_(seed) {}

  int below(int limit) { return static_cast<int>(engine_() % static_cast<unsigned>(limit)); }
  template <class T, std::size_t N>
  T one_of(const std::array<T, N>& values) {
    return values[static_cast<std::size_t>(below(static_cast<int>(N)))];
  }

  /// A divisor of `number`.
  int divisor(int number) {
    int found = 1;
    do found = 1 + below(number);
    while (number % found != 0);
    return found;
  }

  Setting setting() {
    Setting made;
    do {
      made.shape = MeshShape{}
                       .with(Axis::site, 1 + below(3))
                       .with(Axis::pp, 1 + below(4))
                       .with(Axis::dp, 1 + below(4))
                       .with(Axis::cp, 1 + below(4))
                       .with(Axis::tp, one_of(std::array{1, 2, 3, 4}));
    } while (made.shape.ranks() > 64);
    made.shape = made.shape.with(Axis::copy, divisor(made.shape.size(Axis::tp)));
    const int of_stage = made.shape.size({Axis::dp, Axis::cp, Axis::tp});
    const int ep = divisor(of_stage);
    made.shape = made.shape.with(Axis::ep, ep).with(Axis::etp, divisor(of_stage / ep));
    const int pp = made.shape.size(Axis::pp);
    made.shape.ends = {below(pp), below(pp)};
    made.zero = below(4);
    made.layout = layout();
    return made;
  }

 private:
  /// Anything that a parameter may say of an axis.
  Layout layout() {
    Layout made{.view = one_of(std::array{View::dense, View::keys, View::experts})};
    for (const Axis axis : axes_of(made.view)) {
      made = made.with(axis, one_of(std::array{invariant(), replicate(), shard(0)}));
    }
    // Tokens are divided over these, so a parameter is never used alike there.
    for (const Axis axis : {Axis::dp, Axis::cp, Axis::edp}) {
      if (made.on(axis) == invariant()) made = made.with(axis, replicate());
    }
    made = made.with(Axis::site, own());
    made = made.with(Axis::pp, one_of(std::array{alone(), shard(0), ends()}));
    return made;
  }

  std::mt19937 engine_;
};

/// What is the same for two ranks that hold the same elements: their coordinates where others hold
/// other elements, other parameters or other values.
std::vector<int> elements_of(const Setting& setting, int rank, bool with_site) {
  std::vector<int> key;
  for (const Axis axis : axes_of(setting.layout.view)) {
    const Placement::Kind kind = setting.layout.on(axis).kind;
    const bool differs = kind == Placement::Kind::shard || kind == Placement::Kind::alone ||
                         (kind == Placement::Kind::own && with_site);
    key.push_back(differs ? setting.shape.coord(axis, rank) : -1);
  }
  return key;
}

bool holds(const Setting& setting, int rank) {
  if (setting.layout.on(Axis::pp).kind != Placement::Kind::ends) return true;
  const int pp = setting.shape.coord(Axis::pp, rank);
  return pp == setting.shape.ends[0] || pp == setting.shape.ends[1];
}

/// A number for what a rank adds to the gradient: the same for ranks that compute the same.
std::int64_t contribution(const Setting& setting, int rank) {
  std::int64_t number = 1;
  for (const Axis axis : axes_of(setting.layout.view)) {
    const bool is_same = setting.layout.on(axis) == invariant();
    number = 65 * number + (is_same ? 0 : setting.shape.coord(axis, rank));
  }
  return number;
}

/// The gradient of what `rank` holds: what all that use it contribute, each thing once.
std::int64_t expected_gradient(const Setting& setting, int rank) {
  std::set<std::int64_t> distinct;
  std::int64_t sum = 0;
  for (int other = 0; other < setting.shape.ranks(); ++other) {
    if (!holds(setting, other) ||
        elements_of(setting, other, true) != elements_of(setting, rank, true)) {
      continue;
    }
    const std::int64_t adds = contribution(setting, other);
    if (distinct.insert(adds).second) sum += adds;
  }
  return sum;
}

/// The gradient as the axes of `ownership` say: the ranks of each group are summed in turn.
std::map<int, std::int64_t> summed_gradients(const Setting& setting) {
  const Ownership how = ownership(setting.layout);
  std::map<int, std::int64_t> values;
  for (int rank = 0; rank < setting.shape.ranks(); ++rank) {
    if (holds(setting, rank)) values[rank] = contribution(setting, rank);
  }
  const auto sum_over = [&](const auto& group_of) {
    const std::map<int, std::int64_t> before = values;
    for (auto& [rank, value] : values) {
      value = 0;
      for (const int member : group_of(rank)) value += before.at(member);
    }
  };
  sum_over([&](int rank) { return setting.shape.group(how.divides, rank); });
  sum_over([&](int rank) { return setting.shape.group(how.sums, rank); });
  if (how.sums_ends && setting.shape.ends[0] != setting.shape.ends[1]) {
    sum_over([&](int rank) {
      const auto pipeline = setting.shape.group({Axis::pp}, rank);
      return std::vector{pipeline[static_cast<std::size_t>(setting.shape.ends[0])],
                         pipeline[static_cast<std::size_t>(setting.shape.ends[1])]};
    });
  }
  return values;
}

TEST(Ownership, AgreesWithAnOracleOnRandomLayoutsAndMeshes) {
  Draw draw(20);
  for (int round = 0; round < 1000; ++round) {
    const Setting setting = draw.setting();
    SCOPED_TRACE(describe(setting));
    const Ownership how = ownership(setting.layout);
    for (const auto& [rank, gradient] : summed_gradients(setting)) {
      ASSERT_EQ(gradient, expected_gradient(setting, rank)) << "rank " << rank;
    }
    const bool is_divided = setting.zero > 0 && setting.shape.size(how.divides) > 1;
    const int shards = is_divided ? setting.shape.size(how.divides) : 1;
    using Elements = std::pair<std::vector<int>, int>;  // and which shard of them
    std::map<Elements, int> counted;
    std::map<Elements, std::multiset<int>> written;  // parts
    std::map<Elements, int> parts;
    std::set<Elements> counted_wanted, written_wanted;
    for (int rank = 0; rank < setting.shape.ranks(); ++rank) {
      if (!holds(setting, rank)) continue;
      const auto group = setting.shape.group(how.divides, rank);
      const auto place = std::ranges::find(group, rank) - group.begin();
      const int shard = is_divided ? static_cast<int>(place) : 0;
      for (int each = 0; each < shards; ++each) {
        counted_wanted.insert({elements_of(setting, rank, true), each});
        written_wanted.insert({elements_of(setting, rank, false), each});
      }
      if (counts(how, setting.shape, rank, is_divided)) {
        ++counted[{elements_of(setting, rank, true), shard}];
      }
      const WriteShare share = write_share(how, setting.shape, rank, is_divided);
      if (share.count > 0) {
        const Elements elements{elements_of(setting, rank, false), shard};
        written[elements].insert(share.index);
        const auto [at, is_new] = parts.emplace(elements, share.count);
        ASSERT_EQ(at->second, share.count) << "ranks disagree about the number of parts";
      }
    }
    for (const auto& what : counted_wanted) ASSERT_EQ(counted[what], 1) << "counted";
    for (const auto& what : written_wanted) {
      std::multiset<int> each;
      for (int part = 0; part < parts[what]; ++part) each.insert(part);
      ASSERT_FALSE(each.empty()) << "written by nobody";
      ASSERT_EQ(written[what], each) << "every part by one rank";
    }
    ASSERT_EQ(counted.size(), counted_wanted.size());
    ASSERT_EQ(written.size(), written_wanted.size());
  }
}

TEST(Ownership, GroupsOfARecordedMeshAreThoseOfItsShape) {
  Draw draw(21);
  for (int round = 0; round < 50; ++round) {
    const MeshShape shape = draw.setting().shape;
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      const Mesh mesh = Mesh::recorded(shape, rank);
      for (const AxisSet axes : {AxisSet{Axis::dp}, AxisSet{Axis::tp}, AxisSet{Axis::copy},
                                 AxisSet{Axis::ep}, AxisSet{Axis::site}, kTokenAxes}) {
        const auto group = shape.group(axes, rank);
        ASSERT_EQ(mesh.group(axes).size(), static_cast<int>(group.size()));
        ASSERT_EQ(group[static_cast<std::size_t>(mesh.group(axes).rank())], rank);
        ASSERT_TRUE(std::ranges::is_sorted(group));
      }
    }
  }
}

/// The message with which a store refuses a parameter on a mesh.
std::string refusal(const Layout& layout, const MeshShape& shape) {
  auto weight = parameter("model.norm.weight", {8});
  weight->layout = layout;
  Holder unit({weight});
  const std::vector<Layer*> units = {&unit};
  Memory memory(Memory::Mode::dry);
  const Mesh mesh = Mesh::recorded(shape, 0);
  try {
    const ParamStore store(units, ParamStore::Options{}, mesh, memory);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Ownership, AnAxisThatALayoutLeavesOutIsRefusedWhenTheModelIsBuilt) {
  const MeshShape shape = MeshShape{}.with(Axis::dp, 2).with(Axis::cp, 2);
  EXPECT_EQ(refusal(whole_on_stage(), shape), "");
  const Layout without_cp = whole_on_stage().with(Axis::cp, {});
  EXPECT_NE(refusal(without_cp, shape).find("model.norm.weight says nothing of axis cp"),
            std::string::npos);
  EXPECT_EQ(refusal(without_cp, MeshShape{}.with(Axis::dp, 2)), "") << "one rank needs no word";
  EXPECT_NE(refusal(Layout{}, MeshShape{}.with(Axis::site, 2)), "");
}

TEST(ParamStore, SumsAndDividesOverAllRanksThatSeeOtherTokens) {
  // dp x cp: four ranks share what dp alone would divide by two.
  const MeshShape shape = MeshShape{}.with(Axis::dp, 2).with(Axis::cp, 2);
  for (int zero = 0; zero <= 3; ++zero) {
    Collected grads;
    run_ranks(4, [&](World& world) {
      const Mesh mesh(shape, world.all());
      Memory memory;
      Stream stream(1);
      Holders units;
      units.push_back(std::make_unique<Holder>(std::vector{parameter("w", {12, 16})}));
      ParamStore store(pointers(units), {.zero = zero}, mesh, memory);
      walk_gradients(store, stream, [&](int) {
        contribute(*units[0]->own()[0], [&](const std::string&, std::size_t index) {
          return static_cast<float>(index) + static_cast<float>(world.rank());
        });
      });
      std::int64_t held = 0;
      for (const ParamPiece& piece : store.grad_pieces()) held += piece.data.count();
      EXPECT_EQ(held, zero == 0 ? 192 : 48);
      grads.add(store.grad_pieces());
    });
    std::vector<float> want(192);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = 4.0F * static_cast<float>(i) + 6.0F;
    EXPECT_EQ(grads.tensors().at("w"), want) << "zero " << zero;
  }
}

}  // namespace
}  // namespace heddle
