#pragma once

#include <poll.h>

#include <chrono>
#include <string>
#include <vector>

#include "comm/tcp/tcp_greeting.h"

namespace heddle {

/// Those who called a socket that listens, until they have said who they are and, where there is a
/// token, that they know it. Nobody waits for one who is silent or slow.
class Callers {
 public:
  /// `own`: the hello of whoever is called.
  Callers(Socket listening, const Hello& own, const Token& token);

  struct Guest {
    Socket socket;
    SocketAddress from;
    Hello hello;
    bool is_other_version = false;  ///< then the hello is not to be read; never with a token
  };
  /// What to poll for.
  void add_to(std::vector<pollfd>& entries) const;
  /// Goes on with all who are there, and gives those who have come through.
  std::vector<Guest> take();
  /// How many were sent away for their token.
  int refused() const { return refused_; }
  /// Ends the receiving of callers.
  Socket release() { return std::move(listening_); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Caller {
    Socket socket;
    SocketAddress from;
    Clock::time_point until;
    Hello hello = {};
    Challenge challenge = {};
    Proof proof = {};
    std::size_t read = 0;  ///< of hello and proof together
  };
  enum class State { talking, through, gone };

  std::string own_name() const;
  void accept_all();
  State listen_to(Caller& caller, Guest& guest);
  /// Reads on until `bytes` of hello and proof are there; gone when they will not be.
  State read_up_to(Caller& caller, std::size_t bytes) const;
  /// talking: what is left is its proof.
  State check_hello(Caller& caller);
  /// Tells the user and the caller.
  State send_away(const Caller& caller, const std::string& why);

  Socket listening_;
  const Hello own_;
  const Token token_;
  std::vector<Caller> callers_;
  int refused_ = 0;
};

/// Writes an answer, and what belongs to it.
void send_answer(const Socket& to, Answer::Kind kind, const void* data, std::size_t bytes);

}  // namespace heddle
