#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_system.h"
#include "comm/tcp/tcp_world.h"
#include "comm/tcp_listener.h"
#include "support/temporary_folder.h"

// Ranks that are processes: forks of the test that end as the program does.

namespace heddle::testing {

struct Ends {
  std::map<int, std::string> told;  ///< by rank that told it
  std::vector<int> statuses;        ///< 128 + N for signal N, also for one that stopped it
};

/// In the reason of a failure: ranks that are too late to stop by themselves end so.
constexpr const char* kEndsWithStatus42 = "all end with status 42";

/// One rank: what it tells is in a file of its own afterwards.
[[noreturn]] inline void be_rank(const TcpPlace& place, const std::function<void(World&)>& body,
                                 std::chrono::duration<double> limit,
                                 const std::filesystem::path& file) {
  const auto give_up = [](const std::string& reason) {
    if (reason.find(kEndsWithStatus42) != std::string::npos) _exit(42);
  };
  const auto tell = [&](const std::string& text) {
    std::string line = text + "\n";
    std::FILE* const out = std::fopen(file.c_str(), "a");
    std::fputs(line.c_str(), out);
    std::fclose(out);
  };
  try {
    run_tcp_rank(
        place, body,
        {.limit = limit, .tell = tell, .grace = std::chrono::seconds(1), .give_up = give_up});
    _exit(0);
  } catch (const Error& error) {
    _exit(static_cast<int>(error.code()));
  } catch (...) {
    _exit(99);
  }
}

inline Ends run_tcp_processes(
    int ranks, const std::function<void(World&)>& body,
    std::chrono::duration<double> limit = std::chrono::duration<double>{0}, int sockets = 0) {
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
               .listening = rank == 0 ? meeting.socket : -1,
               .sockets = sockets},
              body, limit, file_of(rank));
    }
    children.push_back(child);
  }
  close(meeting.socket);
  Ends ends;
  std::vector<pid_t> stopped;
  for (int rank = 0; rank < ranks; ++rank) {
    int state = 0;
    const pid_t child = children[static_cast<std::size_t>(rank)];
    waitpid(child, &state, WUNTRACED);
    ends.statuses.push_back(WIFEXITED(state)    ? WEXITSTATUS(state)
                            : WIFSTOPPED(state) ? 128 + WSTOPSIG(state)
                                                : 128 + WTERMSIG(state));
    if (WIFSTOPPED(state)) stopped.push_back(child);
    if (std::filesystem::exists(file_of(rank))) ends.told[rank] = read_text_file(file_of(rank));
  }
  for (const pid_t child : stopped) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return ends;
}

}  // namespace heddle::testing
