#include "comm/agree.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/tcp/tcp_world.h"
#include "comm/tcp_listener.h"
#include "comm/threads/thread_world.h"
#include "support/temporary_folder.h"

namespace heddle {
namespace {

constexpr int kRanks = 3;

/// Runs `body` on ranks that are threads joined by TCP, and returns what each threw: its code and
/// message.
std::vector<std::pair<int, std::string>> run_tcp(const std::function<void(World&)>& body) {
  const TcpListener meeting = listen_on(0, kRanks);
  std::vector<std::pair<int, std::string>> thrown(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        TcpPlace place{.rank = rank, .size = kRanks, .port = meeting.port};
        if (rank == 0) place.listening = meeting.socket;
        try {
          run_tcp_rank(place, body);
        } catch (const AgreedError& error) {
          thrown[static_cast<std::size_t>(rank)] = {static_cast<int>(error.code()), error.what()};
        } catch (const Error& error) {
          thrown[static_cast<std::size_t>(rank)] = {-1, error.what()};
        }
      });
    }
  }
  return thrown;
}

TEST(Agree, TextsArriveWholeInTheOrderOfRanks) {
  run_ranks(kRanks, [](World& world) {
    const std::string own(static_cast<std::size_t>(100 * world.rank()),
                          'a' + static_cast<char>(world.rank()));
    EXPECT_EQ(texts_of_all(world, own),
              (std::vector<std::string>{"", std::string(100, 'b'), std::string(200, 'c')}));
    EXPECT_EQ(texts_of_all(world, ""), std::vector<std::string>(kRanks));
    EXPECT_EQ(text_of_first(world, world.rank() == 0 ? "first" : own), "first");
    EXPECT_EQ(text_of_first(world, world.rank() == 0 ? "" : own), "");
  });
}

TEST(Agree, ADecisionThatGoesWellRunsOnTheFirstRankOnly) {
  std::array<bool, kRanks> has_run{};
  run_ranks(kRanks, [&](World& world) {
    decide_on_first(world, [&] { has_run[static_cast<std::size_t>(world.rank())] = true; });
  });
  EXPECT_EQ(has_run, (std::array<bool, kRanks>{true, false, false}));
}

void refuse(World& world) {
  decide_on_first(world, [] { throw Error(ErrorCode::resources, "it is taken", "wait"); });
}

TEST(Agree, AllRanksThrowWhatTheFirstThrew) {
  std::atomic<int> throwers = 0;
  const TemporaryFolder folder;
  try {
    run_ranks(kRanks,
              [&](World& world) {
                try {
                  refuse(world);
                } catch (const AgreedError&) {
                  ++throwers;
                  throw;
                }
              },
              {.flight_folder = folder.path() / "flight"});
    FAIL() << "nothing was thrown";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.code(), ErrorCode::resources);
    EXPECT_STREQ(error.what(), "it is taken; wait");
  }
  EXPECT_EQ(throwers, kRanks);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "flight"))
      << "there is nothing to look into";
}

TEST(Agree, TheFirstOfThoseWhoAgreeKnowsThatItIs) {
  std::array<bool, kRanks> is_first{};
  run_ranks(kRanks, [&](World& world) {
    World rest(world.all().split(world.rank() == 0 ? 0 : 1, world.rank(), "rest"));
    try {
      refuse(rest);
    } catch (const AgreedInWorld& error) {
      is_first[static_cast<std::size_t>(world.rank())] = error.is_first();
    }
  });
  EXPECT_EQ(is_first, (std::array<bool, kRanks>{true, true, false}));
}

TEST(Agree, ProcessesToo) {
  for (int attempt = 0; attempt < 20;
       ++attempt) {  // who is last at the barrier is a matter of luck
    for (const auto& [code, what] : run_tcp(refuse)) {
      EXPECT_EQ(code, static_cast<int>(ErrorCode::resources));
      EXPECT_EQ(what, "it is taken; wait");
    }
  }
}

}  // namespace
}  // namespace heddle
