#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "cli/run_program.h"
#include "comm/tcp_listener.h"

// The program as ranks that are processes and join over TCP, as somebody starts them by hand.

namespace heddle {

using Variables = std::map<std::string, std::string>;

/// A port on which nobody listens, whose successor is free too: ranks meet there.
inline std::uint16_t free_port() {
  const TcpListener listener = listen_on(0, 1);
  close(listener.socket);
  return static_cast<std::uint16_t>(listener.port - 1);
}

/// As somebody sets torchrun's variables by hand.
inline Variables by_hand(int rank, int size, std::uint16_t port) {
  return {{"RANK", std::to_string(rank)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

/// A process for each command, all at the same time; `options` by its number.
inline std::vector<Outcome> run_together(const std::vector<std::vector<std::string>>& commands,
                                         const std::function<RunOptions(int)>& options) {
  std::vector<std::future<Outcome>> running;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    running.push_back(std::async(std::launch::async, [&, i] {
      return run_heddle(commands[i], options(static_cast<int>(i)));
    }));
  }
  std::vector<Outcome> outcomes;
  for (auto& one : running) outcomes.push_back(one.get());
  return outcomes;
}
inline std::vector<Outcome> run_all(const std::vector<std::vector<std::string>>& commands,
                                    const std::function<Variables(int)>& variables) {
  return run_together(commands,
                      [&](int rank) { return RunOptions{.environment = variables(rank)}; });
}

inline std::string all_text(const std::vector<Outcome>& outcomes) {
  std::string text;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    text += fmt::format("-- rank {}, status {}\n{}", i, outcomes[i].status, outcomes[i].err);
  }
  return text;
}

inline void expect_statuses(const std::vector<Outcome>& outcomes, int status) {
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, status);
}

inline bool says(const Outcome& outcome, const std::string& text) {
  return outcome.err.find(text) != std::string::npos;
}

}  // namespace heddle
