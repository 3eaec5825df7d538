// The table of changes of placement (mesh/layout.h): every row's backward is the transpose of its
// forward. A value and a gradient of it are paired by the sum of their products over all ranks,
// with one exception: what is invariant is one tensor, whichever rank looks at it, and counts once.
// A forward f and a backward f* belong together when <y, f(x)> = <f*(y), x> for all x and y.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "comm/threads/thread_world.h"
#include "nn/redistribute.h"

namespace heddle {
namespace {

using Kind = Placement::Kind;

struct Change {
  const char* name;
  Placement from, to;
};

const Change kTable[] = {
    {"InvariantToReplicate", invariant(), replicate()},
    {"PartialToInvariant", partial(), invariant()},
    {"ShardToReplicate", shard(0), replicate()},
    {"PartialToShard", partial(), shard(0)},
    {"ReplicateToShard", replicate(), shard(0)},
    {"InvariantToShard", invariant(), shard(0)},
    {"ShardToInvariant", shard(0), invariant()},
    {"ShardToPartial", shard(0), partial()},
    {"PartialToReplicate", partial(), replicate()},
};

void PrintTo(const Change& change, std::ostream* out) { *out << change.name; }

constexpr std::int64_t kWidth = 3;

bool is_same_everywhere(const Placement& placement) {
  return placement.kind == Kind::invariant || placement.kind == Kind::replicate;
}

/// One rank's side of one change for so many tokens.
class Side {
 public:
  Side(World& world, const Change& change, std::int64_t tokens)
      : world_(world),
        change_(change),
        layer_(world.all(), change.from, change.to, kWidth),
        tokens_(tokens) {
    batch_.ids = memory_.zeros({1, tokens}, DType::i32, MemoryTag::data);
  }

  /// A random tensor that lies so: the same on all ranks where the placement says that.
  Tensor random(const Placement& placement, std::uint64_t seed) {
    const std::int64_t rows =
        placement.kind == Kind::shard ? tokens_per_rank(tokens_, world_.size()) : tokens_;
    const Tensor made = memory_.alloc({rows, kWidth}, DType::f64, MemoryTag::workspace);
    const std::uint64_t stream =
        is_same_everywhere(placement) ? 0 : 1 + static_cast<std::uint64_t>(world_.rank());
    std::uint64_t i = 0;
    for (double& value : made.host<double>()) {
      value = random_normal(seed, 100'000 * stream + i++);
    }
    return made;
  }

  // Copies go in: sums are made in place.
  Tensor forward(const Tensor& x) {
    Ctx ctx = context();
    Saved saved;
    const Tensor y = layer_.forward(copy(x), saved, ctx);
    EXPECT_TRUE(saved.empty());
    return y;
  }
  Tensor backward(const Tensor& dy) {
    Ctx ctx = context();
    Saved saved;
    const Tensor dx = layer_.backward_input(copy(dy), saved, ctx);
    layer_.backward_weight(saved, ctx);
    EXPECT_TRUE(saved.empty());
    return dx;
  }

  /// <value, gradient> over all ranks; the same on every rank.
  double pairing(const Placement& of_value, const Tensor& value, const Tensor& gradient) {
    const Tensor sum = memory_.zeros({1}, DType::f64, MemoryTag::communication);
    const bool counts = of_value.kind != Kind::invariant || world_.rank() == 0;
    if (counts) {
      const auto a = value.host<double>(), b = gradient.host<double>();
      EXPECT_EQ(a.size(), b.size());
      sum.host<double>()[0] = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    }
    world_.all().all_reduce(sum, ReduceOp::sum, stream_).wait(stream_);
    return sum.host<double>()[0];
  }

  void expect_same_on_all_ranks(const Tensor& tensor, const char* what) {
    const Tensor largest = copy(tensor);
    world_.all().all_reduce(largest, ReduceOp::max, stream_).wait(stream_);
    EXPECT_TRUE(std::ranges::equal(tensor.host<double>(), largest.host<double>())) << what;
  }

  void expect_transposed(std::uint64_t seed) {
    const Tensor x = random(change_.from, rng_key(seed, "x"));
    const Tensor y = random(dual(change_.to), rng_key(seed, "y"));
    const Tensor fx = forward(x), fty = backward(y);
    ASSERT_EQ(fx.shape(), y.shape());
    ASSERT_EQ(fty.shape(), x.shape());
    const double left = pairing(change_.to, fx, y), right = pairing(change_.from, x, fty);
    EXPECT_NEAR(left, right, 1e-12 * std::max(1.0, std::abs(left)));
    if (is_same_everywhere(change_.to)) expect_same_on_all_ranks(fx, "f(x)");
    if (is_same_everywhere(dual(change_.from))) expect_same_on_all_ranks(fty, "f*(y)");
  }

  /// What the value means, whichever way it lies: a [tokens, width] matrix on every rank.
  std::vector<double> meaning(const Placement& placement, const Tensor& value) {
    Tensor whole = copy(value);
    if (placement.kind == Kind::partial) {
      world_.all().all_reduce(whole, ReduceOp::sum, stream_).wait(stream_);
    } else if (placement.kind == Kind::shard) {
      const Tensor gathered =
          memory_.alloc({value.size(0) * world_.size(), kWidth}, DType::f64, MemoryTag::workspace);
      world_.all().all_gather(whole, gathered, stream_).wait(stream_);
      whole = gathered.slice(0, 0, tokens_);
    }
    return {whole.host<double>().begin(), whole.host<double>().end()};
  }

  const Change& change() const { return change_; }

 private:
  Ctx context() { return {.stream = stream_, .memory = memory_, .batch = batch_}; }
  Tensor copy(const Tensor& from) {
    const Tensor to = memory_.alloc(from.shape(), DType::f64, MemoryTag::workspace);
    std::ranges::copy(from.host<double>(), to.host<double>().begin());
    return to;
  }

  World& world_;
  const Change& change_;
  Memory memory_;
  Stream stream_{1};
  Redistribute layer_;
  std::int64_t tokens_;
  MicroBatch batch_;
};

class Duality : public testing::TestWithParam<Change> {
 protected:
  /// Token counts that 2, 3 and 4 ranks divide, that they do not, and with ranks that have none.
  static void on_ranks(const std::function<void(World&, std::int64_t tokens)>& body) {
    for (const int ranks : {2, 3, 4}) {
      for (const std::int64_t tokens : {12, 13, 7, 5, 1}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << tokens << " tokens");
        run_ranks(ranks, [&](World& world) { body(world, tokens); });
      }
    }
  }
};

TEST_P(Duality, BackwardIsTheTransposeOfForward) {
  on_ranks([](World& world, std::int64_t tokens) {
    Side side(world, GetParam(), tokens);
    for (const std::uint64_t seed : {1, 2}) side.expect_transposed(seed);
  });
}

// Without it, a forward and a backward that do nothing at all would pass as transposes.
TEST_P(Duality, ForwardKeepsTheMeaningOfTheValue) {
  on_ranks([](World& world, std::int64_t tokens) {
    Side side(world, GetParam(), tokens);
    const Tensor x = side.random(GetParam().from, 3);
    const auto want = side.meaning(GetParam().from, x);
    const auto have = side.meaning(GetParam().to, side.forward(x));
    ASSERT_EQ(have.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have[i], want[i], 1e-12);
  });
}

INSTANTIATE_TEST_SUITE_P(Table, Duality, testing::ValuesIn(kTable),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Redistribute, TokensPerRankCoverAllTokens) {
  EXPECT_EQ(tokens_per_rank(12, 3), 4);
  EXPECT_EQ(tokens_per_rank(13, 3), 5);
  EXPECT_EQ(tokens_per_rank(1, 4), 1);
  EXPECT_EQ(tokens_per_rank(7, 1), 7);
}

TEST(Redistribute, PaddingRowsOfAShardAreZero) {
  run_ranks(3, [](World& world) {
    for (const Change& change : {kTable[3], kTable[4], kTable[5]}) {
      Side side(world, change, 4);  // two each, so that the last rank has none of its own
      const Tensor shard = side.forward(side.random(change.from, 5));
      ASSERT_EQ(shard.shape(), Shape({2, kWidth}));
      if (world.rank() < 2) continue;
      for (const double value : shard.host<double>()) EXPECT_EQ(value, 0.0) << change.name;
    }
  });
}

TEST(Redistribute, RefusesChangesThatAreNotInTheTable) {
  run_ranks(1, [](World& world) {
    const Placement placements[] = {invariant(), replicate(), partial(), shard(0), shard(1)};
    int refused = 0;
    for (const Placement& from : placements) {
      for (const Placement& to : placements) {
        const bool exists = std::ranges::any_of(
            kTable, [&](const Change& row) { return row.from == from && row.to == to; });
        if (exists) {
          EXPECT_NO_THROW(Redistribute(world.all(), from, to, kWidth));
        } else {
          EXPECT_THROW(Redistribute(world.all(), from, to, kWidth), Error);
          ++refused;
        }
      }
    }
    EXPECT_EQ(refused, 25 - 9);
  });
}

}  // namespace
}  // namespace heddle
