#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <vector>

#include "comm/tcp/tcp_greeting.h"
#include "comm/tcp/tcp_socket.h"

namespace heddle::recover {

/// What a relay does, in memory that processes share. Processes are numbered as they are started.
struct RelayRules {
  static constexpr int kMost = 16;
  /// From one to another nothing is forwarded; what was sent meanwhile comes when it is again.
  std::array<std::array<std::atomic<bool>, kMost>, kMost> holds = {};
  /// From one to another a bit is flipped in the next piece of a world's messages, not in notes.
  std::array<std::array<std::atomic<bool>, kMost>, kMost> flips = {};
  /// Where a process listens (in host order), and its number in the system.
  std::array<std::atomic<std::uint16_t>, kMost> ports = {};
  std::array<std::atomic<int>, kMost> processes = {};
};

/// A process in the middle: who calls process i at its relayed port is connected to where it
/// listens. It knows who calls by the greeting, which is not secret.
class Relay {
 public:
  Relay(std::vector<int> listening, RelayRules& rules)
      : listening_(std::move(listening)), rules_(rules) {}

  [[noreturn]] void run() {
    while (true) {
      std::vector<pollfd> entries;
      for (const int socket : listening_) entries.push_back({socket, POLLIN, 0});
      for (const Pair& pair : pairs_) {
        for (const Way& way : pair.ways) {
          // What is full or held is looked at again in a moment.
          if (way.buffer.empty() && !is_held(pair, way)) entries.push_back({way.from, POLLIN, 0});
        }
      }
      poll(entries.data(), entries.size(), 2);
      for (std::size_t i = 0; i < listening_.size(); ++i) accept_all(static_cast<int>(i));
      for (auto at = pairs_.begin(); at != pairs_.end();) {
        if (forward(*at)) {
          ++at;
          continue;
        }
        for (const Way& way : at->ways) close(way.from);
        at = pairs_.erase(at);
      }
    }
  }

 private:
  struct Way {
    int from = -1, to = -1;
    bool is_from_caller = false;
    std::vector<char> buffer = {};
  };
  struct Pair {
    int caller = -1, called = -1;
    bool is_of_world = false;
    std::vector<char> hello = {};
    std::array<Way, 2> ways = {};
  };

  bool is_held(const Pair& pair, const Way& way) const {
    if (pair.caller < 0) return false;
    const auto a = static_cast<std::size_t>(way.is_from_caller ? pair.caller : pair.called);
    const auto b = static_cast<std::size_t>(way.is_from_caller ? pair.called : pair.caller);
    return rules_.holds[a][b];
  }

  void accept_all(int called) {
    while (true) {
      const int caller = accept4(listening_[static_cast<std::size_t>(called)], nullptr, nullptr,
                                 SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (caller < 0) return;
      const std::uint16_t port = rules_.ports[static_cast<std::size_t>(called)];
      Socket made = call_once({htonl(INADDR_LOOPBACK), htons(port)},
                              std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
      if (port == 0 || !made) {
        close(caller);
        continue;
      }
      const int to = dup(made.get());
      const int on = 1;
      for (const int socket : {caller, to}) {
        fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      }
      Pair pair{.called = called};
      pair.ways = {Way{caller, to, true}, Way{to, caller, false}};
      pairs_.push_back(std::move(pair));
    }
  }

  /// False when it has ended.
  bool forward(Pair& pair) {
    for (Way& way : pair.ways) {
      if (is_held(pair, way)) continue;
      if (way.buffer.empty()) {
        std::array<char, 64 << 10> piece;
        const auto got = recv(way.from, piece.data(), piece.size(), 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (got <= 0) continue;
        way.buffer.assign(piece.begin(), piece.begin() + got);
        look_at(pair, way);
        if (is_held(pair, way)) continue;
      }
      const auto put = send(way.to, way.buffer.data(), way.buffer.size(), MSG_NOSIGNAL);
      if (put < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (put > 0) way.buffer.erase(way.buffer.begin(), way.buffer.begin() + put);
    }
    return true;
  }

  void look_at(Pair& pair, Way& way) {
    if (pair.caller < 0) {
      if (!way.is_from_caller) return;
      pair.hello.insert(pair.hello.end(), way.buffer.begin(), way.buffer.end());
      if (pair.hello.size() < sizeof(Hello)) return;
      Hello hello;
      std::memcpy(&hello, pair.hello.data(), sizeof(hello));
      pair.is_of_world = hello.channel == 0;
      for (std::size_t i = 0; i < RelayRules::kMost; ++i) {
        if (rules_.processes[i] == hello.process) pair.caller = static_cast<int>(i);
      }
      return;
    }
    const auto a = static_cast<std::size_t>(way.is_from_caller ? pair.caller : pair.called);
    const auto b = static_cast<std::size_t>(way.is_from_caller ? pair.called : pair.caller);
    // The last piece of the greeting is a proof; messages of worlds are other lengths.
    if (!pair.is_of_world || way.buffer.size() == sizeof(Proof) ||
        way.buffer.size() == sizeof(Challenge) || !rules_.flips[a][b].exchange(false)) {
      return;
    }
    random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
    const std::size_t bit = (random_ >> 20) % (8 * way.buffer.size());
    way.buffer[bit / 8] = static_cast<char>(way.buffer[bit / 8] ^ (1 << (bit % 8)));
  }

  const std::vector<int> listening_;
  RelayRules& rules_;
  std::list<Pair> pairs_;
  std::uint64_t random_ = static_cast<std::uint64_t>(getpid());
};

}  // namespace heddle::recover
