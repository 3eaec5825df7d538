#include "infer/generate_all.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "comm/threads/thread_world.h"
#include "engine/weights.h"
#include "model/config_testing.h"
#include "planner/experts_generation.h"

// Several prompts at a time: each becomes what it becomes alone, however ranks share prompts and
// experts, with one exchange a layer and with two.

namespace heddle {
namespace {

using Texts = std::vector<std::vector<std::int32_t>>;

/// A dense layer and three with one of eight experts for each token, beside one for all.
Json one_expert_config() {
  return with(small_config("heddle_moe"), {{"num_hidden_layers", 4},
                                           {"hidden_size", 32},
                                           {"num_attention_heads", 4},
                                           {"num_key_value_heads", 2},
                                           {"first_k_dense_replace", 1},
                                           {"num_experts", nullptr},
                                           {"n_routed_experts", 8},
                                           {"n_shared_experts", 1},
                                           {"num_experts_per_tok", 1},
                                           {"norm_topk_prob", false},
                                           {"initializer_range", 0.3}});
}

Texts prompts(std::size_t count, std::int64_t vocab) {
  Texts all(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < 1 + 5 * i % 7; ++j) {
      all[i].push_back(
          static_cast<std::int32_t>(random_u64(i, j) % static_cast<std::uint64_t>(vocab)));
    }
  }
  return all;
}

struct Made {
  Texts texts;
  std::set<std::size_t> heard;
  // What the rank has sent, but for rows that all-to-alls take from it to itself:
  std::int64_t calls = 0, bytes = 0;
};

/// Of one axis.
void add_sent(const CommCounts& counts, int ranks, Made& made) {
  const auto& exchanged = counts.by_op[static_cast<std::size_t>(CommOp::all_to_all)];
  const auto& gathered = counts.by_op[static_cast<std::size_t>(CommOp::all_gather)];
  made.calls += exchanged.calls + gathered.calls;
  made.bytes += exchanged.wire_bytes + gathered.wire_bytes / ranks * (ranks - 1);
}

/// On every rank, through these layers; through all where there are none.
std::vector<Made> made_by(const ModelSpec& spec, int ranks, ExpertExchanges exchanges,
                          const Texts& from, const GenerateOptions& options,
                          const std::vector<int>& layers = {}) {
  std::vector<Made> made(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    Memory memory;
    Stream stream(1);
    constexpr std::int64_t kPositions = 64;
    const ParallelPlan plan = make_plan(spec, {.dp = ranks, .ep = ranks}, ranks, kPositions);
    const Mesh mesh(plan.mesh, world.all());
    Model model(spec, {.positions = kPositions}, plan, mesh, ParamStore::Purpose::inference,
                memory);
    initialize(model.store(), 3, stream);
    if (!layers.empty()) model.go_through(layers);
    Made& own = made[static_cast<std::size_t>(world.rank())];
    own.texts = generate_all(
        model, from, options, exchanges,
        [&](std::size_t prompt, std::int32_t) {
          own.heard.insert(prompt);
          return true;
        },
        stream, memory);
    const MeshTraffic traffic = mesh.traffic();
    for (const Axis axis : {Axis::dp, Axis::ep}) add_sent(traffic.on(axis), ranks, own);
  });
  return made;
}

Texts one_by_one(const ModelSpec& spec, const Texts& from, const GenerateOptions& options) {
  Memory memory;
  Stream stream(1);
  Model model(spec, {.positions = 64}, ParamStore::Purpose::inference, memory);
  initialize(model.store(), 3, stream);
  Texts texts;
  for (const auto& prompt : from) {
    texts.push_back(generate(model, prompt, options, {}, stream, memory));
  }
  return texts;
}

TEST(GenerateAll, SeesWindowsAndAnglesOfEachSequence) {
  const Json window =
      with(small_config("mistral"), {{"sliding_window", 4}, {"initializer_range", 0.3}});
  // Beyond 8 tokens angles depend on the length of each sequence.
  const Json dynamic =
      with(small_config("llama"), {{"max_position_embeddings", 8},
                                   {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 8.0}}},
                                   {"initializer_range", 0.3}});
  for (const Json& config : {window, dynamic}) {
    const ModelSpec spec = spec_of(config);
    const Texts from = prompts(6, spec.vocab);
    const GenerateOptions options{.max_tokens = 15};
    EXPECT_EQ(made_by(spec, 1, ExpertExchanges::two, from, options)[0].texts,
              one_by_one(spec, from, options));
  }
}

TEST(GenerateAll, RefusesSequencesThatOutgrowTheirLongropeAngles) {
  const Json config = with(
      small_config("phi3"),
      {{"max_position_embeddings", 64},
       {"original_max_position_embeddings", 8},
       {"rope_scaling",
        {{"type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {2, 2, 2, 2}}}}});
  const ModelSpec spec = spec_of(config);
  const auto make = [&](std::size_t tokens, std::int64_t more) {
    const Texts from = {std::vector<std::int32_t>(tokens, 3)};
    made_by(spec, 1, ExpertExchanges::two, from, {.max_tokens = more});
  };
  EXPECT_NO_THROW(make(5, 3));
  EXPECT_NO_THROW(make(9, 3));
  try {
    make(5, 4);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_STREQ(
        e.what(),
        "a sequence of 5 tokens would grow to 9, and behind 8 the model's rotary embedding "
        "(longrope) has other frequencies for all of it; generate from one prompt at a "
        "time, or at most 3 tokens of this one");
  }
}

TEST(GenerateAll, MakesOfEachPromptWhatItBecomesAlone) {
  const ModelSpec spec = spec_of(one_expert_config());
  const Texts from = prompts(7, spec.vocab);
  for (const GenerateOptions& options :
       {GenerateOptions{.max_tokens = 9},
        GenerateOptions{.max_tokens = 9, .sampling = {.temperature = 1.0, .top_k = 9, .seed = 5}},
        GenerateOptions{
            .max_tokens = 9, .sampling = {.temperature = 1.0}, .end_tokens = {3, 11, 20}}}) {
    const Texts alone = one_by_one(spec, from, options);
    for (const int ranks : {1, 2, 4}) {
      for (const ExpertExchanges exchanges : {ExpertExchanges::two, ExpertExchanges::one}) {
        for (const Made& made : made_by(spec, ranks, exchanges, from, options)) {
          EXPECT_EQ(made.texts, alone)
              << ranks << " ranks, exchanges " << static_cast<int>(exchanges);
          EXPECT_EQ(made.heard.size(), from.size());
        }
      }
    }
  }
}

TEST(GenerateAll, MakesTheSameTextByOneExchangeWhereLayersAreLeftOut) {
  const ModelSpec spec = spec_of(one_expert_config());
  const Texts from = prompts(7, spec.vocab);
  const GenerateOptions options{.max_tokens = 9};
  for (const std::vector<int>& layers : {std::vector<int>{0, 2, 3}, std::vector<int>{0, 1, 2}}) {
    const Texts two = made_by(spec, 2, ExpertExchanges::two, from, options, layers)[0].texts;
    EXPECT_NE(two, made_by(spec, 2, ExpertExchanges::two, from, options)[0].texts);
    for (const Made& made : made_by(spec, 2, ExpertExchanges::one, from, options, layers)) {
      EXPECT_EQ(made.texts, two);
    }
  }
}

/// By sequence and layer the experts of the last token that is decoded, from the text alone.
std::vector<std::vector<int>> last_choices(const ModelSpec& spec, const Texts& from,
                                           const Texts& made) {
  Memory memory;
  Stream stream(1);
  Model model(spec, {.positions = 64}, ParamStore::Purpose::inference, memory);
  initialize(model.store(), 3, stream);
  std::vector<std::vector<int>> choices;
  for (std::size_t i = 0; i < from.size(); ++i) {
    auto text = from[i];
    text.insert(text.end(), made[i].begin(), made[i].end() - 1);
    const auto length = static_cast<std::int64_t>(text.size());
    const Tensor ids = memory.zeros({1, length}, DType::i32, MemoryTag::data);
    std::ranges::copy(text, ids.host<std::int32_t>().begin());
    auto& of_token = choices.emplace_back();
    model.losses(plain_batch(ids, ids, 0, memory), stream, memory, [&](const Choices& told) {
      of_token.push_back(told.experts_TK.host<std::int32_t>().back());
    });
  }
  return choices;
}

/// What the planner predicts is what the ranks count for one more token of each sequence.
TEST(GenerateAll, SendsWhatThePlannerPredicts) {
  const ModelSpec spec = spec_of(one_expert_config());
  constexpr int kRanks = 4, kTokens = 6;
  const Texts from = prompts(8, spec.vocab);
  const auto layers = static_cast<std::size_t>(spec.expert_layers());
  std::int64_t calls[2] = {}, bytes[2] = {};
  Texts texts;
  for (const ExpertExchanges exchanges : {ExpertExchanges::two, ExpertExchanges::one}) {
    const auto at = static_cast<std::size_t>(exchanges);
    const auto more = made_by(spec, kRanks, exchanges, from, {.max_tokens = kTokens}),
               fewer = made_by(spec, kRanks, exchanges, from, {.max_tokens = kTokens - 1});
    texts = more.front().texts;
    for (std::size_t rank = 0; rank < more.size(); ++rank) {
      EXPECT_EQ(more[rank].calls - fewer[rank].calls, more[0].calls - fewer[0].calls);
      bytes[at] += more[rank].bytes - fewer[rank].bytes;
    }
    calls[at] = more[0].calls - fewer[0].calls;
  }
  const auto choices = last_choices(spec, from, texts);
  int leave_home = 0, leave_home_first = 0, hops = 0, stay_home = 0;
  const auto rank_of = [&](int expert) { return expert / (8 / kRanks); };
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const int home = static_cast<int>(i) % kRanks;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const int rank = rank_of(choices[i][layer]);
      ++(rank == home ? stay_home : leave_home);
      if (layer == 0) leave_home_first += rank != home;
      if (layer > 0) hops += rank != rank_of(choices[i][layer - 1]);
    }
  }
  ASSERT_GT(hops, 0);
  planner::GenerationShape shape{
      .ranks = kRanks,
      .layers = static_cast<int>(layers),
      .attention_layers = static_cast<int>(spec.layers),
      .experts = 8,
      .sequences = static_cast<double>(from.size()) / kRanks,
      .hidden = static_cast<double>(spec.hidden),
      .key_values = 2.0 * static_cast<double>(spec.kv_heads * spec.head_dim),
      .element_bytes = 4,
      .leaves = leave_home / static_cast<double>(from.size() * layers)};
  const auto two = planner::two_exchanges(shape);
  const auto to_itself = static_cast<double>(2 * stay_home * spec.hidden * 4);
  EXPECT_EQ(calls[0], two.calls);
  EXPECT_NEAR(static_cast<double>(bytes[0]) - to_itself, kRanks * two.bytes, 1e-6);
  shape.leaves = leave_home_first / static_cast<double>(from.size());
  shape.leaves_placed = hops / static_cast<double>(from.size() * (layers - 1));
  const auto one = planner::one_exchange(shape);
  EXPECT_EQ(calls[1], one.calls);
  EXPECT_NEAR(static_cast<double>(bytes[1]), kRanks * one.bytes, 1e-6);
}

TEST(GenerateAll, SharesPromptsOfDenseModelsAndOfSeveralExperts) {
  for (const char* family : {"llama", "olmoe"}) {
    const ModelSpec spec = spec_of(small_config(family));
    const Texts from = prompts(3, spec.vocab);
    const GenerateOptions options{.max_tokens = 6};
    const Texts alone = one_by_one(spec, from, options);
    std::vector<Texts> shared(2);
    run_ranks(2, [&](World& world) {
      Memory memory;
      Stream stream(1);
      const ParallelRequest request = spec.experts ? ParallelRequest{.dp = 2, .ep = 2}
                                                   : ParallelRequest{.dp = 1, .tp = 1, .pp = 2};
      const ParallelPlan plan = make_plan(spec, request, 2, 64);
      const Mesh mesh(plan.mesh, world.all());
      Model model(spec, {.positions = 64}, plan, mesh, ParamStore::Purpose::inference, memory);
      initialize(model.store(), 3, stream);
      shared[static_cast<std::size_t>(world.rank())] =
          generate_all(model, from, options, ExpertExchanges::two, {}, stream, memory);
    });
    EXPECT_EQ(shared[0], alone) << family;
    EXPECT_EQ(shared[1], alone) << family;
  }
}

TEST(GenerateAll, SaysWhyRowsCannotStay) {
  const MeshShape four = MeshShape().with(Axis::dp, 4).with(Axis::ep, 4);
  const Device cpu;
  const auto why = [&](const Json& changes, const MeshShape& mesh) {
    return refuse_one_exchange(spec_of(with(one_expert_config(), changes)), mesh, cpu);
  };
  EXPECT_EQ(why(Json::object(), four), "");
  EXPECT_NE(why({{"num_experts_per_tok", 2}}, four).find("2 experts"), std::string::npos);
  EXPECT_NE(why(Json::object(), MeshShape().with(Axis::dp, 4)).find("parallel.ep"),
            std::string::npos);
  EXPECT_NE(refuse_one_exchange(spec_of(small_config("llama")), four, cpu).find("no experts"),
            std::string::npos);
}

}  // namespace
}  // namespace heddle
