#include "simulator/decode_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

namespace heddle {
namespace {

DecodeShape shape_of(int ranks, std::int64_t context) {
  return {.ranks = ranks, .context = context, .heads = 8, .key_heads = 2, .head_dim = 16};
}

/// Follows data from round to round: which owners' keys a rank has, and over which its output goes.
class Followed {
 public:
  explicit Followed(const ContextPlan& plan) : plan_(plan), ranks_(plan.forward.by_rank.size()) {
    keys_.resize(ranks_);
    output_.resize(ranks_);
  }

  /// The keys, by their first position, over which every rank's output goes; each once.
  std::vector<std::set<std::int64_t>> outputs() {
    for (std::size_t round = 0; round < static_cast<std::size_t>(plan_.forward.rounds()); ++round) {
      for (std::size_t rank = 0; rank < ranks_; ++rank) attend(rank, at(rank, round));
      const auto before = output_;
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        for (const Message& message : at(rank, round).receives) {
          receive(rank, message, before[static_cast<std::size_t>(message.peer)]);
        }
      }
      expect_matched(round);
    }
    return output_;
  }
  void own(std::size_t rank, std::int64_t first) { keys_[rank].insert(first); }

 private:
  const Round& at(std::size_t rank, std::size_t round) const {
    return plan_.forward.by_rank[rank][round];
  }
  void attend(std::size_t rank, const Round& round) {
    for (const Tile& tile : round.tiles) {
      EXPECT_TRUE(keys_[rank].contains(tile.keys.first)) << "keys that are not there";
      EXPECT_TRUE(output_[rank].insert(tile.keys.first).second) << "a key twice";
    }
  }
  void receive(std::size_t rank, const Message& message, const std::set<std::int64_t>& of_sender) {
    if (message.content == Content::kv) {
      for (const TokenRun& run : message.tokens) keys_[rank].insert(run.first);
    } else if (message.is_partial) {
      for (const std::int64_t key : of_sender) {
        EXPECT_TRUE(output_[rank].insert(key).second) << "a key twice";
      }
    } else {
      output_[rank] = of_sender;
    }
  }
  void expect_matched(std::size_t round) const {
    std::multiset<std::pair<std::size_t, std::size_t>> sent, received;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      for (const Message& message : at(rank, round).sends) {
        sent.emplace(rank, static_cast<std::size_t>(message.peer));
      }
      for (const Message& message : at(rank, round).receives) {
        received.emplace(static_cast<std::size_t>(message.peer), rank);
      }
    }
    EXPECT_EQ(sent, received);
  }

  const ContextPlan& plan_;
  const std::size_t ranks_;
  std::vector<std::set<std::int64_t>> keys_, output_;
};

TEST(DecodePlan, EveryRankAttendsToEveryKeyOnce) {
  for (const DecodeMethod method : {DecodeMethod::tree, DecodeMethod::ring, DecodeMethod::gather}) {
    for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33}) {
      const DecodeShape shape = shape_of(ranks, 5 * ranks + ranks / 2);
      const ContextPlan plan = make_decode_plan(method, shape);
      SCOPED_TRACE(fmt::format("{} on {} ranks", name_of(method), ranks));
      Followed followed(plan);
      std::set<std::int64_t> all;
      std::int64_t tokens = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const TokenRun keys = decode_keys(shape, rank);
        followed.own(static_cast<std::size_t>(rank), keys.first);
        all.insert(keys.first);
        tokens += keys.count;
      }
      EXPECT_EQ(tokens, shape.context);
      for (const auto& output : followed.outputs()) EXPECT_EQ(output, all);
    }
  }
}

TEST(DecodePlan, SendsWhatTheFormulasSay) {
  const int ranks = 8, tokens = 1000;
  const DecodeShape shape = shape_of(ranks, ranks * tokens);
  const auto sent = [&](DecodeMethod method) {
    const ContextPlan plan = make_decode_plan(method, shape);
    return count_by_rank(plan.forward, plan.shape).front().sent;
  };
  // K and V of all ranks but one, on their way or from their owner.
  const std::int64_t keys = 2 * tokens * 2 * 16 * (ranks - 1);
  EXPECT_EQ(sent(DecodeMethod::ring).values, keys);
  EXPECT_EQ(sent(DecodeMethod::gather).values, keys);
  // Output and lse of every head, three times, whatever the context.
  EXPECT_EQ(sent(DecodeMethod::tree).partials, 3 * 8 * 16);
  EXPECT_EQ(sent(DecodeMethod::tree).statistics, 3 * 8);
  EXPECT_EQ(sent(DecodeMethod::tree).values, 0);
}

TEST(DecodePlan, ProblemsAreAllSaidAtOnce) {
  const auto problems = problems_of(
      DecodeShape{.ranks = 5000, .context = 0, .heads = 6, .key_heads = 4, .head_dim = -1});
  EXPECT_EQ(problems.size(), 4U);
}

}  // namespace
}  // namespace heddle
