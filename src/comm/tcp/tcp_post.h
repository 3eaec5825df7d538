#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/tcp/tcp_greeting.h"

namespace heddle {

/// Sends whole messages to one address, over a connection of its own that it makes when there is
/// something to send, and again when it is gone. Whoever sends never waits: a thread does, for one
/// who is slow, silent or not there. Messages arrive in order, but not all of them do: those that
/// were on their way when a connection went, and the oldest where too many wait.
class TcpPost {
 public:
  using Message = std::shared_ptr<const std::vector<std::byte>>;
  /// In Hello::channel: what comes are such messages, not those of a world.
  static constexpr std::int32_t kChannel = -1;

  /// `hello`: how it greets whoever is called, but for the channel.
  TcpPost(const SocketAddress& to, const Hello& hello, const Token& token);
  /// What waits is lost (see flush).
  ~TcpPost();
  TcpPost(const TcpPost&) = delete;
  TcpPost& operator=(const TcpPost&) = delete;

  void send(Message message);
  /// Returns when everything is on its way, or cannot be by then.
  void flush(std::chrono::steady_clock::time_point until);
  /// Why whoever answers at the address did not take the greeting, as it was last; empty: it did,
  /// or nobody has answered.
  std::string refusal();
  /// Of the connection as it was last; 0 before there was one.
  std::chrono::nanoseconds round_trip() const { return std::chrono::nanoseconds(round_trip_); }

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  bool connect();

  const SocketAddress to_;
  const Hello hello_;
  const Token token_;
  const Socket stopping_;  // an event
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> waiting_;
  bool is_writing_ = false, is_stopping_ = false;
  Socket socket_;  // changed by the thread only, under the lock
  std::string refusal_;
  std::atomic<std::int64_t> round_trip_ = 0;
  std::thread thread_;
};

}  // namespace heddle
