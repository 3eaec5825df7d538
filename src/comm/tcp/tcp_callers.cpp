#include "comm/tcp/tcp_callers.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

#include "base/log.h"

namespace heddle {
namespace {

/// A greeting is two round trips, over links that may lose packets.
constexpr std::chrono::seconds kTimeToGreet{10};
/// Those who wait for an answer, so that strangers do not take all that the system has.
constexpr std::size_t kMostCallers = 512;
constexpr int kMostNamed = 5;

}  // namespace

Callers::Callers(Socket listening, const Hello& own, const Token& token)
    : listening_(std::move(listening)), own_(own), token_(token) {}

void Callers::add_to(std::vector<pollfd>& entries) const {
  // Who cannot be taken is not looked at either: the poll would return at once.
  const bool has_room = callers_.size() < kMostCallers;
  entries.push_back({.fd = has_room ? listening_.get() : -1, .events = POLLIN, .revents = 0});
  for (const Caller& caller : callers_) {
    entries.push_back({.fd = caller.socket.get(), .events = POLLIN, .revents = 0});
  }
}

std::string Callers::own_name() const { return rank_or(own_.rank, "the one that it called"); }

void Callers::accept_all() {
  while (callers_.size() < kMostCallers && is_readable(listening_.get(), Clock::now())) {
    sockaddr_in from{};
    socklen_t length = sizeof(from);
    Socket socket(
        accept4(listening_.get(), reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC));
    if (!socket) return;
    callers_.push_back({.socket = std::move(socket),
                        .from = {from.sin_addr.s_addr, from.sin_port},
                        .until = Clock::now() + kTimeToGreet});
  }
}

std::vector<Callers::Guest> Callers::take() {
  accept_all();
  std::vector<Caller> talking;
  std::vector<Guest> guests;
  for (Caller& caller : callers_) {
    Guest guest;
    switch (listen_to(caller, guest)) {
      case State::talking: talking.push_back(std::move(caller)); break;
      case State::through:
        guest.socket = std::move(caller.socket);
        guest.from = caller.from;
        guest.hello = caller.hello;
        guests.push_back(std::move(guest));
        break;
      case State::gone: break;
    }
  }
  callers_ = std::move(talking);
  return guests;
}

Callers::State Callers::read_up_to(Caller& caller, std::size_t bytes) const {
  while (caller.read < bytes) {
    const bool is_hello = caller.read < sizeof(Hello);
    auto* const to = is_hello ? reinterpret_cast<char*>(&caller.hello) + caller.read
                              : caller.proof.data() + (caller.read - sizeof(Hello));
    const std::size_t end = is_hello ? std::min(bytes, sizeof(Hello)) : bytes;
    const auto got = recv(caller.socket.get(), to, end - caller.read, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      return Clock::now() >= caller.until ? State::gone : State::talking;
    }
    if (got <= 0) return State::gone;
    caller.read += static_cast<std::size_t>(got);
  }
  return State::through;
}

Callers::State Callers::listen_to(Caller& caller, Guest& guest) {
  if (caller.read < sizeof(Hello)) {
    const State start = read_up_to(caller, offsetof(Hello, rank));
    if (start != State::through) return start;
    if (caller.hello.magic != Hello::kMagic) return State::gone;
    if (caller.hello.protocol != Hello::kProtocol) {
      if (token_) return send_away(caller, "is another version of heddle");
      guest.is_other_version = true;
      return State::through;
    }
    const State all = read_up_to(caller, sizeof(Hello));
    if (all != State::through) return all;
    const State checked = check_hello(caller);
    if (checked != State::talking) return checked;
  }
  const State proof = read_up_to(caller, sizeof(Hello) + sizeof(Proof));
  if (proof != State::through) return proof;
  if (token_.accepts(caller.proof, kCaller, proved(caller.hello, caller.challenge.nonce))) {
    return State::through;
  }
  return send_away(caller, fmt::format("has another token than {}", own_name()));
}

Callers::State Callers::check_hello(Caller& caller) {
  if (!token_ && caller.hello.has_token == 0) return State::through;
  if (caller.hello.has_token == 0) {
    return send_away(caller, fmt::format("was started without a token, {} with one", own_name()));
  }
  if (token_) {
    caller.challenge.has_token = 1;
    caller.challenge.nonce = make_nonce();
    caller.challenge.proof = token_.prove(kCalled, proved(caller.hello, caller.challenge.nonce));
  }
  write_bytes(caller.socket.get(), &caller.challenge, sizeof(Challenge));
  if (token_) return State::talking;
  return send_away(caller, fmt::format("was started with a token, {} without one", own_name()));
}

Callers::State Callers::send_away(const Caller& caller, const std::string& why) {
  ++refused_;
  const bool is_named = caller.read >= sizeof(Hello);
  const std::string who =
      is_named ? fmt::format("{} ({}, from {})", rank_or(caller.hello.rank, "a newcomer"),
                             caller.hello.who(), caller.from.host_text())
               : fmt::format("a caller from {}", caller.from.host_text());
  if (refused_ <= kMostNamed) {
    log_warn("{} {}: it is not let in{}", who, why,
             refused_ == kMostNamed ? "; no more of these will be named" : "");
  }
  const std::string text =
      fmt::format("{} {}", rank_or(is_named ? caller.hello.rank : -1, "this process"), why);
  // What was not read when a connection is closed would take the answer with it. Who sends more
  // than a caller has to say may go without: it could keep on sending.
  char rest[4096];
  static_cast<void>(!recv(caller.socket.get(), rest, sizeof(rest), MSG_DONTWAIT));
  send_answer(caller.socket, Answer::stranger, text.data(), text.size());
  return State::gone;
}

void send_answer(const Socket& to, Answer::Kind kind, const void* data, std::size_t bytes) {
  const Answer answer{kind, static_cast<std::uint32_t>(bytes)};
  write_bytes(to.get(), &answer, sizeof(answer));
  write_bytes(to.get(), data, bytes);
}

}  // namespace heddle
