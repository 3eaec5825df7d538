// The user hears once of what a world of processes fails of. Ranks are processes here: forks of the
// test that end as the program does.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "base/error.h"
#include "base/file_system.h"
#include "comm/stopped_by_peer.h"
#include "comm/tcp/tcp_world.h"
#include "comm/tcp_listener.h"
#include "comm/training_calls.h"
#include "support/temporary_folder.h"

namespace heddle {
namespace {

struct Ends {
  std::map<int, std::string> told;  ///< by rank that told it
  std::vector<int> statuses;        ///< 128 + N for signal N
};

/// One rank: what it tells is in a file of its own afterwards.
[[noreturn]] void be_rank(const TcpPlace& place, const std::function<void(World&)>& body,
                          std::chrono::duration<double> limit, const std::filesystem::path& file) {
  const auto tell = [&](const std::string& text) {
    std::string line = text + "\n";
    std::FILE* const out = std::fopen(file.c_str(), "a");
    std::fputs(line.c_str(), out);
    std::fclose(out);
  };
  try {
    run_tcp_rank(place, body, {.limit = limit, .tell = tell, .grace = std::chrono::seconds(1)});
    _exit(0);
  } catch (const Error& error) {
    _exit(static_cast<int>(error.code()));
  } catch (...) {
    _exit(99);
  }
}

Ends run_processes(int ranks, const std::function<void(World&)>& body,
                   std::chrono::duration<double> limit = std::chrono::duration<double>{0}) {
  const TemporaryFolder folder;
  const auto file_of = [&](int rank) { return folder.path() / std::to_string(rank); };
  const TcpListener meeting = listen_on(0, ranks);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      be_rank({.rank = rank,
               .size = ranks,
               .port = meeting.port,
               .listening = rank == 0 ? meeting.socket : -1},
              body, limit, file_of(rank));
    }
    children.push_back(child);
  }
  close(meeting.socket);
  Ends ends;
  for (int rank = 0; rank < ranks; ++rank) {
    int state = 0;
    waitpid(children[static_cast<std::size_t>(rank)], &state, 0);
    ends.statuses.push_back(WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state));
    if (std::filesystem::exists(file_of(rank))) ends.told[rank] = read_text_file(file_of(rank));
  }
  return ends;
}

TEST(Telling, TheRankThatFailsTellsItAndAllEndWithItsStatus) {
  const Ends ends = run_processes(4, [](World& world) {
    if (world.rank() == 2) throw Error(ErrorCode::data, "the file is torn", "mend it");
    testing::train(world);
  });
  EXPECT_EQ(ends.told, (std::map<int, std::string>{{2, "rank 2: the file is torn; mend it\n"}}));
  EXPECT_EQ(ends.statuses, std::vector<int>(4, 5));
}

TEST(Telling, OneTellsWhatAllFailOf) {
  const Ends ends =
      run_processes(4, [](World&) { throw Error(ErrorCode::resources, "there is no such file"); });
  EXPECT_EQ(ends.told.size(), 1U);
  EXPECT_EQ(ends.statuses, std::vector<int>(4, 3));
}

TEST(Telling, RankZeroNamesARankThatWasKilled) {
  const Ends ends = run_processes(4, [](World& world) {
    world.all().barrier();
    if (world.rank() == 2) std::raise(SIGKILL);
    testing::train(world);
  });
  ASSERT_EQ(ends.told.size(), 1U);
  EXPECT_NE(ends.told.at(0).find("the process of rank 2 is gone"), std::string::npos);
  EXPECT_EQ(ends.statuses, (std::vector<int>{4, 4, 128 + SIGKILL, 4}));
}

TEST(Telling, RankOneNamesARankZeroThatWasKilled) {
  const Ends ends = run_processes(4, [](World& world) {
    world.all().barrier();
    if (world.rank() == 0) std::raise(SIGKILL);
    testing::train(world);
  });
  EXPECT_EQ(ends.told, (std::map<int, std::string>{{1, "the process of rank 0 is gone\n"}}));
  EXPECT_EQ(ends.statuses, (std::vector<int>{128 + SIGKILL, 4, 4, 4}));
}

TEST(Telling, RankZeroNamesARankThatHangs) {
  const Ends ends = run_processes(
      3,
      [](World& world) {
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::hours(1));
        testing::train(world);
      },
      std::chrono::duration<double>(2));
  ASSERT_EQ(ends.told.size(), 1U);
  EXPECT_NE(ends.told.at(0).find("rank 1 "), std::string::npos) << ends.told.at(0);
  EXPECT_EQ(ends.statuses, std::vector<int>(3, 4));
}

}  // namespace
}  // namespace heddle
