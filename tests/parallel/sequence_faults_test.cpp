#include <functional>

#include "parallel/sequence_testing.h"

namespace heddle {
namespace {

ContextPlan sound_plan(ContextMethod method) {
  return make_context_plan({.method = method,
                            .ranks = 4,
                            .tokens = 40,
                            .documents = {7, 33},
                            .heads = 8,
                            .key_heads = 4});
}

/// EXPECTs that a fault is found, in words that have all of `mentions`.
void expect_found(ContextPlan plan, const std::function<void(ContextPlan&)>& break_it,
                  const std::vector<std::string>& mentions) {
  SCOPED_TRACE(to_text(plan.shape));
  ASSERT_TRUE(validate(plan).empty());
  break_it(plan);
  const auto found = validate(plan);
  ASSERT_FALSE(found.empty());
  std::string all;
  for (const Diagnostic& wrong : found) {
    all += "rank " + std::to_string(wrong.rank) + ": " + wrong.message + "\n";
  }
  for (const std::string& text : mentions) {
    EXPECT_NE(all.find(text), std::string::npos) << "does not mention " << text << "\n" << all;
  }
}

/// The first round of any rank, in order of rounds, that `has` what a fault needs.
Round& round_with(ContextPass& pass, const std::function<bool(const Round&)>& has) {
  for (std::size_t round = 0; round < static_cast<std::size_t>(pass.rounds()); ++round) {
    for (auto& rounds : pass.by_rank) {
      if (has(rounds[round])) return rounds[round];
    }
  }
  throw std::runtime_error("no such round");
}

bool has_tile(const Round& round) { return !round.tiles.empty(); }
bool has_send(const Round& round) { return !round.sends.empty(); }
bool has_receive(const Round& round) { return !round.receives.empty(); }

TEST(ValidateContext, FindsADroppedTile) {
  for (const ContextMethod method : kContextMethodsTested) {
    expect_found(sound_plan(method),
                 [](ContextPlan& plan) { round_with(plan.forward, has_tile).tiles.pop_back(); },
                 {"forward: query", "is never computed"});
    expect_found(sound_plan(method),
                 [](ContextPlan& plan) { round_with(plan.backward, has_tile).tiles.pop_back(); },
                 {"backward: query", "is never computed"});
  }
}

TEST(ValidateContext, FindsADoubledTile) {
  for (const ContextMethod method : kContextMethodsTested) {
    expect_found(sound_plan(method),
                 [](ContextPlan& plan) {
                   auto& tiles = round_with(plan.forward, has_tile).tiles;
                   tiles.push_back(tiles.front());
                 },
                 {"forward: query", "is computed 2 times"});
  }
}

TEST(ValidateContext, FindsOnePairTooManyAndOneTooFew) {
  expect_found(
      sound_plan(ContextMethod::ring),
      [](ContextPlan& plan) { --round_with(plan.forward, has_tile).tiles.back().keys.count; },
      {"is never computed"});
  expect_found(sound_plan(ContextMethod::ring),
               [](ContextPlan& plan) {
                 for (Tile& tile : plan.forward.by_rank[0][0].tiles) tile.is_causal = false;
               },
               {"a later token"});
  expect_found(sound_plan(ContextMethod::lightseq),
               [](ContextPlan& plan) {
                 // Token 7 begins the second document; its tile takes token 6 in.
                 for (auto& rounds : plan.forward.by_rank) {
                   for (Tile& tile : rounds[0].tiles) {
                     if (tile.keys.first != 7) continue;
                     --tile.keys.first;
                     ++tile.keys.count;
                   }
                 }
               },
               {"key 6", "of another document"});
}

/// A missing and a doubled key would cancel out in a count of pairs.
TEST(ValidateContext, FindsAKeyThatStandsInForAnother) {
  expect_found(make_context_plan({.method = ContextMethod::lightseq, .ranks = 4, .tokens = 40}),
               [](ContextPlan& plan) { --plan.forward.by_rank[2][1].tiles.front().keys.first; },
               {"query 20 with key 9 in head 0 is computed 2 times"});
}

TEST(ValidateContext, FindsAMissingSendAndAMissingReceive) {
  for (const ContextMethod method : kContextMethodsTested) {
    for (ContextPass ContextPlan::*pass : {&ContextPlan::forward, &ContextPlan::backward}) {
      expect_found(sound_plan(method),
                   [&](ContextPlan& plan) { round_with(plan.*pass, has_send).sends.pop_back(); },
                   {"waits for ever for", "which does not send it"});
      expect_found(
          sound_plan(method),
          [&](ContextPlan& plan) { round_with(plan.*pass, has_receive).receives.pop_back(); },
          {"which does not receive it"});
    }
  }
}

TEST(ValidateContext, FindsAMessageThatIsOneRoundLate) {
  expect_found(sound_plan(ContextMethod::ring),
               [](ContextPlan& plan) {
                 for (auto& rounds : plan.forward.by_rank) {
                   std::swap(rounds[0].sends, rounds[1].sends);
                   std::swap(rounds[0].receives, rounds[1].receives);
                 }
               },
               {"computes with keys", "without having them"});
}

/// Takes all messages of some content out of a pass, on both sides.
void drop_all(ContextPass& pass, Content content) {
  for (auto& rounds : pass.by_rank) {
    for (Round& round : rounds) {
      std::erase_if(round.sends, [&](const Message& m) { return m.content == content; });
      std::erase_if(round.receives, [&](const Message& m) { return m.content == content; });
    }
  }
}

TEST(ValidateContext, FindsResultsThatDoNotComeHome) {
  struct Case {
    ContextMethod method;
    Content forward, backward;
    std::string of;
  };
  for (const Case& c :
       {Case{ContextMethod::lightseq, Content::out, Content::kv_grad, "dK and dV"},
        Case{ContextMethod::tokenring, Content::out, Content::q_grad, "dQ"},
        Case{ContextMethod::ulysses, Content::out, Content::kv_grad, "dK and dV"}}) {
    expect_found(sound_plan(c.method),
                 [&](ContextPlan& plan) { drop_all(plan.forward, c.forward); },
                 {"forward: its output of token", "never goes to the rank that has this token"});
    expect_found(sound_plan(c.method),
                 [&](ContextPlan& plan) { drop_all(plan.backward, c.backward); },
                 {"backward: its " + c.of + " of token"});
  }
}

TEST(ValidateContext, FindsAResultThatIsSentTwice) {
  expect_found(sound_plan(ContextMethod::tokenring),
               [](ContextPlan& plan) {
                 for (auto& rounds : plan.forward.by_rank) {
                   for (Round& round : rounds) {
                     for (auto* messages : {&round.sends, &round.receives}) {
                       const auto once = *messages;
                       for (const Message& message : once) {
                         if (message.content == Content::out) messages->push_back(message);
                       }
                     }
                   }
                 }
               },
               {"sends output", "without having it"});
}

TEST(ValidateContext, FindsQueriesWithoutTheirOutputGradient) {
  expect_found(sound_plan(ContextMethod::ulysses),
               [](ContextPlan& plan) { drop_all(plan.backward, Content::out_grad); },
               {"backward", "computes with queries", "without having them"});
}

TEST(ValidateContext, FindsWhatDoesNotExist) {
  expect_found(sound_plan(ContextMethod::ring),
               [](ContextPlan& plan) { round_with(plan.forward, has_send).sends.front().peer = 4; },
               {"there is no rank 4"});
  expect_found(
      sound_plan(ContextMethod::ring),
      [](ContextPlan& plan) { round_with(plan.forward, has_tile).tiles.front().heads.count = 9; },
      {"do not exist"});
  expect_found(sound_plan(ContextMethod::ring),
               [](ContextPlan& plan) { plan.backward.by_rank[2].pop_back(); }, {"rank 0 has"});
}

}  // namespace
}  // namespace heddle
