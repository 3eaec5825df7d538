// Experts divided over ranks, by themselves: every way of exchanging gives what one rank computes,
// and sends what the formulas of the papers say.

#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "base/error.h"
#include "comm/threads/thread_world.h"
#include "nn/experts/experts.h"
#include "nn/layer_testing.h"
#include "nn/sample_layers.h"
#include "ops/elementwise.h"

namespace heddle {
namespace {

constexpr std::int64_t kHidden = 6, kWide = 8, kCount = 12, kChosen = 3;

/// Tokens of every rank: some have few, one has none.
std::int64_t tokens_of(int rank) { return rank == 1 ? 0 : 5 + 3 * (rank % 3); }

/// What a rank, or one for all of them, makes of its tokens.
struct Made {
  std::vector<double> y, dx, router, up, down;
};

/// The weights of all experts, and of a rank's part of them.
class WeightsOf {
 public:
  explicit WeightsOf(Memory& memory)
      : up_(uniform({kCount * 2 * kWide, kHidden}, 0.8, 11, memory)),
        down_(uniform({kCount * kHidden, kWide}, 0.8, 12, memory)) {}

  Experts::Weights cut(int ep, int p, int etp, int s, Memory& memory) const {
    const std::int64_t own = kCount / ep, width = kWide / etp;
    Experts::Weights made{.up = parameter("up", {own * 2 * width, kHidden}),
                          .down = parameter("down", {own * kHidden, width})};
    for (const auto& weight : {made.up, made.down}) {
      weight->value = memory.zeros(weight->shape, DType::f64, MemoryTag::parameters);
      weight->grad = memory.zeros(weight->shape, DType::f64, MemoryTag::gradients);
    }
    const std::int64_t ups = 2 * own, downs = own * kHidden;
    const Tensor up = up_.view({2 * kCount, kWide, kHidden})
                          .slice(0, p * ups, (p + 1) * ups)
                          .slice(1, s * width, (s + 1) * width);
    const Tensor down =
        down_.slice(0, p * downs, (p + 1) * downs).slice(1, s * width, (s + 1) * width);
    ops::copy(up, made.up->value.view({ups, width, kHidden}), stream_);
    ops::copy(down, made.down->value, stream_);
    return made;
  }

 private:
  mutable Stream stream_{1};
  const Tensor up_, down_;
};

/// Forward, B and W, or both halves at once, of some tokens of all.
class ExpertRun {
 public:
  ExpertRun(ExpertDivision division, int ep, int p, int etp, int s) : weights_(memory_) {
    router_ = parameter("router", {kCount, kHidden});
    router_->value = uniform({kCount, kHidden}, 1.0, 10, memory_);
    router_->grad = memory_.zeros({kCount, kHidden}, DType::f64, MemoryTag::gradients);
    own_ = weights_.cut(ep, p, etp, s, memory_);
    layer_ = std::make_unique<Experts>(
        std::make_unique<Router>(router_, Router::Options{.per_token = kChosen}), own_, nullptr,
        std::move(division));
  }

  Made pass(std::int64_t begin, std::int64_t end, bool together) {
    const MicroBatch batch;
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch};
    const Tensor x = uniform({100, kHidden}, 1.5, 1, memory_).slice(0, begin, end);
    const Tensor dy = uniform({100, kHidden}, 1.0, 2, memory_).slice(0, begin, end);
    for (Parameter* p : {router_.get(), own_.up.get(), own_.down.get()}) p->retire_grad();
    Saved saved;
    Made made;
    made.y = values_of(layer_->forward(x, saved, ctx));
    if (together) {
      made.dx = values_of(layer_->backward(dy, saved, ctx));
    } else {
      made.dx = values_of(layer_->backward_input(dy, saved, ctx));
      layer_->backward_weight(saved, ctx);
    }
    EXPECT_TRUE(saved.empty());
    made.router = values_of(router_->grad);
    made.up = values_of(own_.up->grad);
    made.down = values_of(own_.down->grad);
    return made;
  }

  /// Forward alone, of which nothing is kept.
  void look(std::int64_t begin, std::int64_t end) {
    const MicroBatch batch;
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch, .keep = Keep::nothing};
    Saved saved;
    layer_->forward(uniform({100, kHidden}, 1.5, 1, memory_).slice(0, begin, end), saved, ctx);
  }

 private:
  Memory memory_;
  Stream stream_{1};
  WeightsOf weights_;
  std::shared_ptr<Parameter> router_;
  Experts::Weights own_;
  std::unique_ptr<Experts> layer_;
};

/// A rank's ranks of ep and etp.
struct Grid {
  std::unique_ptr<Communicator> ep, etp;
  Grid(World& world, int etp_size, bool in_background = false)
      : ep(world.all().split(world.rank() % etp_size, world.rank(), "ep")),
        etp(world.all().split(world.rank() / etp_size, world.rank(), "etp")) {
    for (Communicator* const lane : {ep.get(), etp.get()}) lane->run_in_background(in_background);
  }
};

ExpertDivision division_of(const Grid& grid, const std::string& exchange, float most_rows = 0) {
  const ExpertRanks ranks{
      .ep = grid.ep.get(),
      .etp = grid.etp.get(),
      .choice = std::make_shared<ExchangeChoice>(exchange, grid.etp->size(), grid.ep->size()),
      .most_rows = most_rows};
  return {.exchange = std::make_unique<ExpertExchange>(ranks, kCount, "block 3")};
}

std::vector<std::int64_t> begins(int ranks) {
  std::vector<std::int64_t> all = {0};
  for (int rank = 0; rank < ranks; ++rank) all.push_back(all.back() + tokens_of(rank));
  return all;
}

void expect_near(const std::vector<double>& made, const std::vector<double>& expected,
                 const char* what) {
  ASSERT_EQ(made.size(), expected.size()) << what;
  for (std::size_t i = 0; i < made.size(); ++i) {
    ASSERT_NEAR(made[i], expected[i], 1e-11) << what << " " << i;
  }
}

/// Every rank's outputs, and all gradients put together, are those of one rank.
void expect_as_on_one_rank(int ep, int etp, const std::string& exchange, int passes = 1) {
  SCOPED_TRACE(testing::Message() << "ep " << ep << " etp " << etp << " " << exchange);
  const std::vector<std::int64_t> begin = begins(ep * etp);
  ExpertRun whole({}, 1, 0, 1, 0);
  const Made one = whole.pass(0, begin.back(), true);
  Memory memory;
  for (const bool together : {true, false}) {
    std::mutex mutex;
    std::vector<double> router(one.router.size(), 0.0);
    run_ranks(ep * etp, [&](World& world) {
      const Grid grid(world, etp);
      const int p = world.rank() / etp, s = world.rank() % etp;
      ExpertRun run(division_of(grid, exchange), ep, p, etp, s);
      const auto rank = static_cast<std::size_t>(world.rank());
      Made own;
      for (int i = 0; i < passes; ++i) own = run.pass(begin[rank], begin[rank + 1], together);
      const std::lock_guard lock(mutex);
      const auto of_tokens = [&](const std::vector<double>& all) {
        return std::vector<double>(all.begin() + begin[rank] * kHidden,
                                   all.begin() + begin[rank + 1] * kHidden);
      };
      expect_near(own.y, of_tokens(one.y), "y");
      expect_near(own.dx, of_tokens(one.dx), "dx");
      for (std::size_t i = 0; i < router.size(); ++i) router[i] += own.router[i];
      const std::int64_t experts = kCount / ep, width = kWide / etp;
      std::vector<double> up, down;
      for (std::int64_t e = p * experts; e < (p + 1) * experts; ++e) {
        for (std::int64_t half = 0; half < 2; ++half) {
          const auto at = one.up.begin() + ((2 * e + half) * kWide + s * width) * kHidden;
          up.insert(up.end(), at, at + width * kHidden);
        }
        for (std::int64_t row = e * kHidden; row < (e + 1) * kHidden; ++row) {
          const auto at = one.down.begin() + row * kWide + s * width;
          down.insert(down.end(), at, at + width);
        }
      }
      expect_near(own.up, up, "up's gradient");
      expect_near(own.down, down, "down's gradient");
    });
    expect_near(router, one.router, "the router's gradient");
  }
}

TEST(ExpertExchange, DividesExpertsAndTheirWidthAsOneRankHasThem) {
  for (const auto& [ep, etp] : {std::pair{1, 2}, {2, 1}, {2, 2}, {3, 2}, {2, 4}, {4, 1}, {6, 1}}) {
    expect_as_on_one_rank(ep, etp, "");
  }
}

TEST(ExpertExchange, BringsRowsOrWeightsTogether) {
  for (const auto& [ep, etp] : {std::pair{1, 4}, {2, 2}, {2, 4}, {3, 2}}) {
    for (const int r : {0, 1, 2, 4}) {
      if (r == 0 || etp % r == 0) expect_as_on_one_rank(ep, etp, "r=" + std::to_string(r));
    }
  }
}

TEST(ExpertExchange, CutsRowsIntoPieces) {
  for (const char* degree : {"degree=2", "degree=3/1", "degree=1/4 networks=1", "degree=32/5"}) {
    expect_as_on_one_rank(2, 2, degree);
    expect_as_on_one_rank(3, 1, degree);
  }
}

/// What every rank of two nodes of two makes of its tokens.
std::vector<Made> made_by(const std::string& exchange, bool in_background) {
  std::vector<Made> made(4);
  const auto begin = begins(4);
  run_ranks(4, [&](World& world) {
    const Grid grid(world, 2, in_background);
    const auto rank = static_cast<std::size_t>(world.rank());
    ExpertRun run(division_of(grid, exchange), 2, world.rank() / 2, 2, world.rank() % 2);
    made[rank] = run.pass(begin[rank], begin[rank + 1], true);
  });
  return made;
}

/// Who carries rows, and beside what, changes nothing of what they become.
TEST(ExpertExchange, LanesChangeNoBit) {
  for (const std::string exchange : {"", "degree=4", "degree=2/8", "r=1 degree=3", "degree=3 2dh=2",
                                     "r=1", "degree=2/3 rows=again"}) {
    const auto in_turn = made_by(exchange, false);
    for (const char* networks : {" networks=1", " networks=2"}) {
      const auto made = made_by(exchange + networks, true);
      for (std::size_t rank = 0; rank < made.size(); ++rank) {
        SCOPED_TRACE(testing::Message() << exchange << networks << " rank " << rank);
        EXPECT_EQ(made[rank].y, in_turn[rank].y);
        EXPECT_EQ(made[rank].dx, in_turn[rank].dx);
        EXPECT_EQ(made[rank].up, in_turn[rank].up);
        EXPECT_EQ(made[rank].down, in_turn[rank].down);
        EXPECT_EQ(made[rank].router, in_turn[rank].router);
      }
    }
  }
}

TEST(ExpertExchange, GoesInTwoLevels) {
  for (const auto& [ep, node] : {std::pair{4, 2}, {6, 2}, {6, 3}, {12, 4}, {12, 6}}) {
    expect_as_on_one_rank(ep, 1, "2dh=" + std::to_string(node));
  }
  expect_as_on_one_rank(4, 2, "2dh=2 degree=3/2 r=1");
}

/// Rows that come a second time are those that came first.
TEST(ExpertExchange, SendsRowsAgain) {
  for (const std::string exchange : {"", "degree=3", "degree=2/3", "r=1"}) {
    const auto kept = made_by(exchange, false), again = made_by(exchange + " rows=again", false);
    for (std::size_t rank = 0; rank < kept.size(); ++rank) {
      EXPECT_EQ(again[rank].dx, kept[rank].dx) << exchange;
      EXPECT_EQ(again[rank].up, kept[rank].up) << exchange;
      EXPECT_EQ(again[rank].down, kept[rank].down) << exchange;
    }
  }
}

/// Nothing of what is kept between calls depends on the plan: weights, gradients and states.
TEST(ExpertExchange, ChangesItsPlanFromCallToCall) {
  const int plans = static_cast<int>(turns_of(2, 2).size());
  for (const int passes : {1, 2, plans / 2, plans}) {
    expect_as_on_one_rank(4, 2, "turns 2dh=2", passes);
  }
}

// ---- Bytes --------------------------------------------------------------------------------------

/// Counts of one forward and backward, by rank.
struct Sent {
  CommCounts ep, etp;
};
std::vector<Sent> sent_by(int ep, int etp, const std::string& exchange) {
  std::vector<Sent> sent(static_cast<std::size_t>(ep * etp));
  const auto begin = begins(ep * etp);
  run_ranks(ep * etp, [&](World& world) {
    const Grid grid(world, etp);
    const auto rank = static_cast<std::size_t>(world.rank());
    ExpertRun run(division_of(grid, exchange), ep, world.rank() / etp, etp, world.rank() % etp);
    run.pass(begin[rank], begin[rank + 1], true);
    sent[rank] = {grid.ep->counts(), grid.etp->counts()};
  });
  return sent;
}

std::int64_t bytes(const std::vector<Sent>& sent, CommCounts Sent::*axis, CommOp op) {
  std::int64_t sum = 0;
  for (const Sent& rank : sent)
    sum += (rank.*axis).by_op[static_cast<std::size_t>(op)].payload_bytes;
  return sum;
}

/// Dropless: k T rows there and back in each pass, with a weight and its gradient beside them in
/// backward, whatever the tokens choose.
TEST(ExpertExchange, SendsWhatTheFormulasSay) {
  for (const auto& [ep, etp] : {std::pair{2, 1}, {4, 1}, {2, 2}, {2, 4}}) {
    const std::int64_t rows = begins(ep * etp).back() * kChosen, row = 8 * kHidden;
    const auto plain = sent_by(ep, etp, "");
    EXPECT_EQ(bytes(plain, &Sent::ep, CommOp::all_to_all), rows * (4 * row + 2 * 8));
    // Each row, and what is made of it, is on all ranks of etp.
    EXPECT_EQ(bytes(plain, &Sent::etp, CommOp::all_to_all),
              etp == 1 ? 0 : etp * rows * (4 * row + 2 * 8));
    EXPECT_EQ(bytes(plain, &Sent::ep, CommOp::all_gather),
              std::int64_t{ep} * ep * etp * (kCount + 1) * 4);
    const auto in_pieces = sent_by(ep, etp, "degree=4");
    EXPECT_EQ(bytes(in_pieces, &Sent::ep, CommOp::all_to_all), rows * (4 * row + 2 * 8));
    const auto again = sent_by(ep, etp, "rows=again");
    EXPECT_EQ(bytes(again, &Sent::ep, CommOp::all_to_all), rows * (5 * row + 2 * 8));
    EXPECT_EQ(bytes(again, &Sent::etp, CommOp::all_to_all),
              etp == 1 ? 0 : etp * rows * (5 * row + 2 * 8));
    const auto twice = sent_by(ep, etp, "2dh=2");
    EXPECT_EQ(bytes(twice, &Sent::ep, CommOp::all_to_all), 2 * rows * (4 * row + 2 * 8));
  }
}

/// Tutel 3.1: with r of S ranks for each row, weights of S / r are gathered, in either pass, and
/// their gradients scattered.
TEST(ExpertExchange, SendsWeightsInPlaceOfRows) {
  constexpr int kEp = 2, kEtp = 4;
  const std::int64_t rows = begins(kEp * kEtp).back() * kChosen, row = 8 * kHidden;
  const std::int64_t shard = kCount / kEp * 3 * kWide / kEtp * kHidden * 8;
  for (const int r : {1, 2, 4}) {
    const auto sent = sent_by(kEp, kEtp, "r=" + std::to_string(r));
    const std::int64_t of_rows = r == 1 ? 0 : r * rows * (4 * row + 2 * 8);
    const std::int64_t of_weights = r == kEtp ? 0 : 3 * (kEtp / r) * shard * kEp * kEtp;
    EXPECT_EQ(bytes(sent, &Sent::etp, CommOp::all_to_all), of_rows + of_weights) << r;
    EXPECT_EQ(bytes(sent, &Sent::ep, CommOp::all_to_all), rows * (4 * row + 2 * 8)) << r;
  }
  const auto none = sent_by(kEp, kEtp, "r=0");
  EXPECT_EQ(bytes(none, &Sent::ep, CommOp::all_to_all), 0);
  EXPECT_EQ(bytes(none, &Sent::etp, CommOp::all_to_all), 3 * kEtp * shard * kEp * kEtp);
  const std::int64_t all = std::int64_t{kEp} * kEtp * shard * kEp * kEtp;
  EXPECT_EQ(bytes(none, &Sent::ep, CommOp::reduce_scatter), all);
  EXPECT_EQ(bytes(none, &Sent::ep, CommOp::all_gather),
            2 * all + std::int64_t{kEp} * kEp * kEtp * (kCount + 1) * 4);
}

/// Of two messages of which one level has each: within a node and between nodes, nothing else.
TEST(TwoLevel, MeetsNeighboursAndRanksOfTheSamePlaceOnly) {
  for (const auto& [ranks, node] : {std::pair{6, 2}, {6, 3}, {8, 4}, {8, 2}, {4, 1}, {4, 4}}) {
    run_ranks(ranks, [&, node = node, ranks = ranks](World& world) {
      Memory memory;
      Stream stream(1);
      const MicroBatch batch;
      Ctx ctx{.stream = stream, .memory = memory, .batch = batch};
      TwoLevel::Counts counts(static_cast<std::size_t>(ranks));
      for (int from = 0; from < ranks; ++from) {
        for (int to = 0; to < ranks; ++to) {
          counts[static_cast<std::size_t>(from)].push_back((from * 5 + to * 3) % 4);
        }
      }
      std::vector<double> sent, expected;
      for (int other = 0; other < ranks; ++other) {
        const auto own = static_cast<std::size_t>(world.rank()),
                   peer = static_cast<std::size_t>(other);
        for (std::int64_t i = 0; i < counts[own][peer]; ++i) {
          sent.push_back(1000 * world.rank() + 10 * other + static_cast<double>(i));
        }
        for (std::int64_t i = 0; i < counts[peer][own]; ++i) {
          expected.push_back(1000 * other + 10 * world.rank() + static_cast<double>(i));
        }
      }
      const Tensor rows = memory.alloc({std::ssize(sent), 1}, DType::f64, MemoryTag::activations);
      std::ranges::copy(sent, rows.host<double>().begin());
      const auto received = TwoLevel(world.all(), node).exchange(rows, counts, 0, ctx);
      received.work.wait(stream);
      EXPECT_EQ(values_of(received.rows), expected);
    });
  }
}

// ---- Too many rows ------------------------------------------------------------------------------

TEST(ExpertExchange, RefusesMoreRowsThanItMayReceiveByName) {
  std::string message, hint;
  try {
    run_ranks(4, [&](World& world) {
      const Grid grid(world, 1);
      ExpertRun run(division_of(grid, "", 1.01), 4, world.rank(), 1, 0);
      run.pass(0, 20, true);
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resources);
    message = error.message();
    hint = error.hint();
  }
  EXPECT_NE(message.find("block 3: rank "), std::string::npos) << message;
  EXPECT_NE(message.find("times an even share of 60, and parallel.ep_rows = 1.01 allows 61"),
            std::string::npos)
      << message;
  EXPECT_NE(hint.find("parallel.ep_rows"), std::string::npos) << hint;
  // The bound is one of steps: what keeps nothing takes less.
  run_ranks(4, [&](World& world) {
    const Grid grid(world, 1);
    ExpertRun run(division_of(grid, "", 1.01), 4, world.rank(), 1, 0);
    run.look(0, 20);
  });
  // All rows on one of four ranks are 4 times an even share.
  run_ranks(4, [&](World& world) {
    const Grid grid(world, 1);
    ExpertRun run(division_of(grid, "", 4), 4, world.rank(), 1, 0);
    run.pass(0, 20, true);
  });
}

}  // namespace
}  // namespace heddle
