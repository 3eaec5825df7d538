#include "parallel/tensor_rules.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/record/record_communicator.h"

namespace heddle {
namespace {

using Cut = TensorRules::Cut;

bool operator==(const Cut& a, const Cut& b) { return a.begin == b.begin && a.size == b.size; }

TEST(TensorRules, OfOneRankDivideNothing) {
  RecordCommunicator alone(0, 1);
  for (const TensorRules& rules : {TensorRules(), TensorRules(alone, true)}) {
    EXPECT_EQ(rules.ranks(), 1);
    EXPECT_FALSE(rules.divides());
    EXPECT_FALSE(rules.splits_tokens());
    EXPECT_EQ(rules.comm(), nullptr);
    EXPECT_TRUE(rules.cut(6, 4) == (Cut{0, 24}));
    EXPECT_EQ(rules.copies(1), 1);
    EXPECT_EQ(rules.padded_rows(7), 7);
    EXPECT_TRUE(rules.valid_rows(7) == (Cut{0, 7}));
    EXPECT_EQ(rules.residual(), invariant());
    EXPECT_EQ(rules.on_residual(), whole_on_stage());
    EXPECT_EQ(rules.token_share().count, 1);
    Layers layers;
    rules.enter(layers, 4);
    rules.leave(layers, 4);
    rules.share_tokens(layers, 4);
    rules.join_tokens(layers, 4);
    EXPECT_TRUE(layers.empty());
  }
}

TEST(TensorRules, CutsOfAllRanksCoverADimensionOnce) {
  for (const int ranks : {2, 3, 4}) {
    for (const std::int64_t units : {ranks, 2 * ranks, 5 * ranks}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        RecordCommunicator tp(rank, ranks);
        const TensorRules rules(tp, false);
        const Cut cut = rules.cut(units, 8);
        EXPECT_EQ(cut.begin, next);
        EXPECT_EQ(cut.size, units / ranks * 8);
        EXPECT_EQ(rules.copies(units), 1);
        next = cut.begin + cut.size;
      }
      EXPECT_EQ(next, units * 8);
    }
  }
}

TEST(TensorRules, FewerUnitsThanRanksAreHeldByNeighbours) {
  for (int rank = 0; rank < 6; ++rank) {
    RecordCommunicator tp(rank, 6);
    const TensorRules rules(tp, false);
    EXPECT_TRUE(rules.cut(2, 8) == (Cut{rank / 3 * 8, 8})) << rank;
    EXPECT_EQ(rules.copies(2), 3);
    EXPECT_TRUE(rules.cut(1, 8) == (Cut{0, 8}));
    EXPECT_EQ(rules.copies(1), 6);
  }
}

TEST(TensorRules, RefuseUnitsThatNeitherDivideNorAreDivided) {
  RecordCommunicator tp(1, 4);
  const TensorRules rules(tp, false);
  EXPECT_THROW(rules.cut(6, 1), Error);
  EXPECT_THROW(rules.cut(3, 1), Error);
}

TEST(TensorRules, VocabulariesArePaddedAtTheEnd) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const std::int64_t vocab : {1, 5, 8, 50257}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        RecordCommunicator tp(rank, ranks);
        const TensorRules rules(tp, false);
        const Cut valid = rules.valid_rows(vocab);
        EXPECT_LE(valid.size, rules.padded_rows(vocab));
        EXPECT_EQ(valid.begin, next);
        // Only where the vocabulary has ended is there padding.
        if (valid.size < rules.padded_rows(vocab)) {
          EXPECT_EQ(valid.begin + valid.size, vocab);
        }
        next = valid.begin + valid.size;
      }
      EXPECT_EQ(next, vocab) << ranks << " ranks";
    }
  }
}

TEST(TensorRules, ParametersOfTheStreamAreSummedOnlyWhereTokensAreSplit) {
  RecordCommunicator tp(1, 2);
  const auto on_tp = [](Placement placement) { return whole_on_stage().with(Axis::tp, placement); };
  const TensorRules plain(tp, false), sequence(tp, true);
  EXPECT_EQ(plain.residual(), invariant());
  EXPECT_EQ(sequence.residual(), shard(0));
  EXPECT_EQ(plain.on_residual(), whole_on_stage());
  EXPECT_EQ(sequence.on_residual(), on_tp(replicate()));
  for (const TensorRules& rules : {plain, sequence}) {
    EXPECT_EQ(rules.used_apart(), on_tp(replicate()));
    EXPECT_EQ(rules.divided(0), on_tp(shard(0)));
    EXPECT_EQ(rules.divided(1), on_tp(shard(1)));
    EXPECT_EQ(rules.comm(), &tp);
  }
  EXPECT_EQ(plain.token_share().count, 1);
  EXPECT_EQ(sequence.token_share().count, 2);
  EXPECT_EQ(sequence.token_share().index, 1);
}

/// What travels in the forward and the backward of the layers that a rule adds.
struct Traffic {
  std::size_t layers = 0;
  std::int64_t all_reduce = 0, all_gather = 0, reduce_scatter = 0;
  std::int64_t rows_out = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

std::ostream& operator<<(std::ostream& out, const Traffic& t) {
  return out << t.layers << " layers, " << t.all_reduce << " all-reduce, " << t.all_gather
             << " all-gather, " << t.reduce_scatter << " reduce-scatter, " << t.rows_out << " rows";
}

using Rule = void (TensorRules::*)(Layers&, std::int64_t) const;

Traffic traffic(Rule rule, bool sequence, std::int64_t rows_in, bool backward) {
  constexpr std::int64_t kTokens = 5, kWidth = 3;
  RecordCommunicator tp(1, 2);
  const TensorRules rules(tp, sequence);
  Layers layers;
  (rules.*rule)(layers, kWidth);
  Memory memory;
  Stream stream(1);
  MicroBatch batch;
  batch.ids = memory.zeros({1, kTokens}, DType::i32, MemoryTag::data);
  Ctx ctx{.stream = stream, .memory = memory, .batch = batch};
  Saved saved;
  Tensor x = memory.zeros({rows_in, kWidth}, DType::f32, MemoryTag::activations);
  for (const auto& layer : layers) {
    x = backward ? layer->backward_input(x, saved, ctx) : layer->forward(x, saved, ctx);
  }
  const auto calls = [&](CommOp op) {
    return tp.counts().by_op[static_cast<std::size_t>(op)].calls;
  };
  return {layers.size(), calls(CommOp::all_reduce), calls(CommOp::all_gather),
          calls(CommOp::reduce_scatter), x.size(0)};
}

TEST(TensorRules, PlaceOneCollectivePerPassAroundAProduct) {
  constexpr std::int64_t kAll = 5, kOwn = 3;  // of five tokens, padded
  const auto forward = [](Rule rule, bool sequence, std::int64_t rows) {
    return traffic(rule, sequence, rows, false);
  };
  const auto backward = [](Rule rule, bool sequence, std::int64_t rows) {
    return traffic(rule, sequence, rows, true);
  };
  EXPECT_EQ(forward(&TensorRules::enter, false, kAll), (Traffic{1, 0, 0, 0, kAll}));
  EXPECT_EQ(backward(&TensorRules::enter, false, kAll), (Traffic{1, 1, 0, 0, kAll}));
  EXPECT_EQ(forward(&TensorRules::leave, false, kAll), (Traffic{1, 1, 0, 0, kAll}));
  EXPECT_EQ(backward(&TensorRules::leave, false, kAll), (Traffic{1, 0, 0, 0, kAll}));

  EXPECT_EQ(forward(&TensorRules::enter, true, kOwn), (Traffic{1, 0, 1, 0, kAll}));
  EXPECT_EQ(backward(&TensorRules::enter, true, kAll), (Traffic{1, 0, 0, 1, kOwn}));
  EXPECT_EQ(forward(&TensorRules::leave, true, kAll), (Traffic{1, 0, 0, 1, kOwn}));
  EXPECT_EQ(backward(&TensorRules::leave, true, kOwn), (Traffic{1, 0, 1, 0, kAll}));
}

TEST(TensorRules, ShareTokensOfAWholeStreamOnly) {
  constexpr std::int64_t kAll = 5, kOwn = 3;
  EXPECT_EQ(traffic(&TensorRules::share_tokens, false, kAll, false), (Traffic{1, 0, 0, 0, kOwn}));
  EXPECT_EQ(traffic(&TensorRules::share_tokens, false, kOwn, true), (Traffic{1, 0, 1, 0, kAll}));
  EXPECT_EQ(traffic(&TensorRules::join_tokens, false, kOwn, false), (Traffic{1, 0, 1, 0, kAll}));
  EXPECT_EQ(traffic(&TensorRules::join_tokens, false, kAll, true), (Traffic{1, 0, 0, 0, kOwn}));
  EXPECT_EQ(traffic(&TensorRules::share_tokens, true, kOwn, false), (Traffic{0, 0, 0, 0, kOwn}));
  EXPECT_EQ(traffic(&TensorRules::join_tokens, true, kOwn, false), (Traffic{0, 0, 0, 0, kOwn}));
}

}  // namespace
}  // namespace heddle
