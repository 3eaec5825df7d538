#include "parallel/context_attention_testing.h"

// The layer that ranks of axis cp share, with threads for ranks and real tensors: out, dq, dk and
// dv must be those of the whole sequence on one rank.

namespace heddle {
namespace {

constexpr DType kTypes[] = {DType::f64, DType::f32};

class SharedAttention : public testing::TestWithParam<ContextMethod> {
 protected:
  /// A random case; a few are long.
  ContextShape packed_case(std::uint64_t seed) const {
    CaseRandom random(5000 + seed);
    const auto orders = orders_of(GetParam());
    const int widths[] = {1, 3, 4, 7, 8, 16, 17, 20};
    ContextShape shape{.method = GetParam(),
                       .order = orders[seed % orders.size()],
                       .ranks = static_cast<int>(2 + seed % 7),
                       .tokens = random.between(1, 300),
                       .head_dim = widths[random.between(0, 7)]};
    if (seed % 50 == 49) {
      // All kinds of lengths in one sequence.
      shape.documents = {1, 137, 2041, 2, 1};
      shape.tokens = 2182;
      return with_heads(shape, 1, 1);
    }
    if (seed % 4 != 0) shape.documents = random_documents(shape.tokens, shape.ranks, random);
    return with_heads(shape, static_cast<int>(random.between(1, 3)),
                      static_cast<int>(random.between(1, 3)));
  }
};

INSTANTIATE_TEST_SUITE_P(All, SharedAttention, testing::ValuesIn(kContextMethodsTested),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(SharedAttention, OfPackedDocumentsIsThatOfOneRank) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    expect_same_as_one_rank(packed_case(seed), kTypes[seed / 7 % 2]);
    if (HasFatalFailure()) return;
  }
}

TEST_P(SharedAttention, InWindowsIsThatOfOneRankWithAndWithoutCaps) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    ContextShape shape = packed_case(seed);
    CaseRandom random(7000 + seed);
    shape.window = random_window(shape, random);
    Memory memory;
    const ops::ScoreRule rule(1.0 / std::sqrt(static_cast<double>(shape.head_dim)),
                              seed % 3 == 0 ? 1.5 : 0.0);
    expect_same_as_one_rank(shape, random_input(shape, memory), rule, 1.0, kTypes[seed / 7 % 2],
                            memory);
    if (HasFatalFailure()) return;
  }
}

/// Pairs of query and key that a call of a kernel computes.
std::int64_t pairs_of(const TileCall& call) {
  std::int64_t pairs = 0;
  for (std::int64_t query = 0; query < call.queries.count; ++query) {
    const std::int64_t jump = query >= call.jump_at ? call.jump : 0;
    const std::int64_t end = call.ahead + query + jump + 1, begin = end - call.window.value_or(end);
    pairs += std::clamp<std::int64_t>(end, 0, call.keys.count) -
             std::clamp<std::int64_t>(begin, 0, call.keys.count);
  }
  EXPECT_EQ(head_pairs(call), pairs * call.queries.heads.count);
  return pairs * call.queries.heads.count;
}

TEST_P(SharedAttention, HasNoRowOfPaddingAndNoPairThatTheMaskForbids) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    ContextShape shape = packed_case(seed);
    CaseRandom random(6000 + seed);
    if (seed % 2 == 1) shape.window = random_window(shape, random);
    shape = resolved(shape);
    SCOPED_TRACE(to_text(shape));
    const ContextPlan plan = make_context_plan(shape);
    std::int64_t rows = 0, pairs = 0, backward_pairs = 0;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const ContextProgram forward = make_context_program(plan, ContextPassKind::forward, rank);
      const ContextProgram backward = make_context_program(plan, ContextPassKind::backward, rank);
      const Piece& own = forward.pieces[ContextProgram::kQueries];
      rows += tokens_in(own.tokens) * own.heads.count;
      for (const ProgramRound& round : forward.rounds) {
        for (const TileCall& call : round.tiles) pairs += pairs_of(call);
      }
      for (const ProgramRound& round : backward.rounds) {
        for (const TileCall& call : round.tiles) backward_pairs += pairs_of(call);
      }
    }
    ASSERT_EQ(rows, shape.tokens * shape.heads);
    ASSERT_EQ(pairs, pairs_of_mask(shape) * shape.heads);
    ASSERT_EQ(backward_pairs, pairs);
  }
}

TEST_P(SharedAttention, StandsRanksWithoutTokens) {
  for (const std::int64_t tokens : {1, 2, 5, 6}) {
    for (const ContextOrder order : orders_of(GetParam())) {
      ContextShape shape{
          .method = GetParam(), .order = order, .ranks = 7, .tokens = tokens, .head_dim = 8};
      for (const DType dtype : kTypes) expect_same_as_one_rank(with_heads(shape, 2, 2), dtype);
    }
  }
}

/// Logits of -10,000 to 10,000 that are 100 apart and that f32 has exactly: one key counts, and
/// where it is on another rank, lse is far from that of all others.
AttentionInput large_logits(const ContextShape& shape, Memory& memory) {
  const AttentionInput input = random_input(shape, memory);
  const std::int64_t K = shape.head_dim, H = shape.heads, G = shape.key_heads;
  for (std::int64_t token = 0; token < shape.tokens; ++token) {
    double* row = input.qkv.data<double>() + token * (H + 2 * G) * K;
    std::fill_n(row, (H + G) * K, 0.0);
    for (std::int64_t head = 0; head < H; ++head) row[head * K] = token % 2 == 0 ? 100 : -100;
    const auto level =
        static_cast<double>(random_permutation(9, static_cast<std::uint64_t>(token % 201), 201));
    for (std::int64_t head = 0; head < G; ++head) row[(H + head) * K] = level - 100;
  }
  return input;
}

TEST_P(SharedAttention, StandsLogitsOf10000) {
  for (const ContextOrder order : orders_of(GetParam())) {
    const ContextShape shape = with_heads({.method = GetParam(),
                                           .order = order,
                                           .ranks = 4,
                                           .tokens = 201,
                                           .documents = {150, 51},
                                           .head_dim = 8},
                                          2, 2);
    Memory memory;
    const AttentionInput input = large_logits(shape, memory);
    for (const DType dtype : kTypes) {
      expect_same_as_one_rank(shape, input, 1.0, 100.0, dtype, memory);
    }
  }
}

TEST_P(SharedAttention, TakesTheHeadsOfManyModels) {
  // Heads that do not divide by the ranks, and fewer key heads than ranks.
  const std::pair<int, int> heads[] = {{8, 1}, {8, 2}, {8, 4}, {8, 8}, {5, 5}, {6, 3}, {7, 1}};
  for (const auto& [query_heads, key_heads] : heads) {
    for (const int ranks : {3, 4, 8}) {
      ContextShape shape{.method = GetParam(),
                         .ranks = ranks,
                         .tokens = 61,
                         .documents = {20, 41},
                         .heads = query_heads,
                         .key_heads = key_heads,
                         .head_dim = 5};
      if (!problems_of(shape).empty()) continue;  // sequence_rounds_test has the refusals
      for (const DType dtype : kTypes) expect_same_as_one_rank(shape, dtype);
    }
  }
}

TEST(SharedHeads, MayBeSharedByRanksOfUsp) {
  for (const int key_heads : {1, 2, 4}) {
    for (const int context_heads : {2, 4, 8}) {
      for (const DType dtype : kTypes) {
        expect_same_as_one_rank({.method = ContextMethod::usp,
                                 .ranks = 8,
                                 .tokens = 67,
                                 .documents = {13, 53, 1},
                                 .heads = 8,
                                 .key_heads = key_heads,
                                 .head_dim = 6,
                                 .context_heads = context_heads},
                                dtype);
      }
    }
  }
}

TEST(EqualLogits, Over64KKeysGiveTheMean) {
  // Queries of 0, and values that are multiples of 1/64: sums of them are exact. 16-bit
  // accumulators overflow here, and 32-bit ones must not drift with the number of keys.
  const ContextShape shape = resolved(
      {.method = ContextMethod::ring, .ranks = 2, .tokens = 65536, .heads = 1, .key_heads = 1});
  Memory memory;
  const AttentionInput input = random_input(shape, memory);
  for (std::int64_t token = 0; token < shape.tokens; ++token) {
    double* row = input.qkv.data<double>() + token * 3;
    row[0] = 0.0;
    row[2] = static_cast<double>(random_u64(3, static_cast<std::uint64_t>(token)) % 129) / 64;
  }
  const AttentionResult made =
      divided_attention(shape, input, 1.0, DType::f32, memory, /*backward=*/false);
  double sum = 0.0;
  for (std::int64_t token = 0; token < shape.tokens; ++token) {
    sum += input.qkv.data<double>()[token * 3 + 2];
    ASSERT_NEAR(made.out.data<double>()[token], sum / static_cast<double>(token + 1), 1e-5);
  }
}

}  // namespace
}  // namespace heddle
