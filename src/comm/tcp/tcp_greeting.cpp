#include "comm/tcp/tcp_greeting.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace heddle {

std::string Hello::who() const {
  std::string name(machine, strnlen(machine, sizeof(machine)));
  // Of somebody who may be anybody.
  std::ranges::replace_if(
      name, [](char c) { return c <= ' ' || c > '~'; }, '?');
  return fmt::format("process {} on {}", process, name);
}

std::string rank_or(int rank, const char* otherwise) {
  return rank < 0 ? otherwise : fmt::format("rank {}", rank);
}

Hello own_hello(int rank, int size, std::uint16_t port, int meeting) {
  Hello hello{
      .rank = rank, .size = size, .port = htons(port), .process = getpid(), .meeting = meeting};
  gethostname(hello.machine, sizeof(hello.machine) - 1);
  return hello;
}

std::vector<std::byte> proved(const Hello& hello, const Nonce& nonce) {
  std::vector<std::byte> what(sizeof(Hello));
  std::memcpy(what.data(), &hello, sizeof(Hello));
  what.insert(what.end(), nonce.begin(), nonce.end());
  return what;
}

bool say_hello(const Socket& to, Hello hello, const Token& token, const std::string& called,
               const std::function<void()>& wait) {
  hello.has_token = token ? 1 : 0;
  hello.nonce = make_nonce();
  if (!write_bytes(to.get(), &hello, sizeof(hello))) return false;
  if (!token) return true;
  while (
      !is_readable(to.get(), std::chrono::steady_clock::now() + std::chrono::milliseconds(200))) {
    wait();
  }
  Challenge challenge;
  if (!read_bytes(to.get(), &challenge, sizeof(challenge))) return false;
  if (challenge.has_token == 0) {
    throw Error(ErrorCode::peer,
                fmt::format("{} was started without a token, {} with one", called,
                            rank_or(hello.rank, "this process")),
                kSameTokenHint);
  }
  const auto what = proved(hello, challenge.nonce);
  // Also to one that does not know the token, which then can name this rank.
  const Proof own = token.prove(kCaller, what);
  const bool is_there = write_bytes(to.get(), own.data(), own.size());
  if (!token.accepts(challenge.proof, kCalled, what)) {
    throw Error(
        ErrorCode::peer,
        fmt::format("{} has another token than {}", called, rank_or(hello.rank, "this process")),
        kSameTokenHint);
  }
  return is_there;
}

}  // namespace heddle
