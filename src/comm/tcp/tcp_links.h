#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/tcp/tcp_socket.h"
#include "comm/world_failure.h"

namespace heddle {

/// A connection to every other rank, over which messages travel. Messages with the same group, tag
/// and sender arrive in the order of sends. Threads take in whatever comes, so a send never waits
/// for its receive. Thread-safe.
class TcpLinks : public Wakeable {
 public:
  /// `sockets`: what join_ranks gave this rank.
  TcpLinks(int rank, std::vector<Socket> sockets, std::shared_ptr<WorldFailure> failure);
  ~TcpLinks() override;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(links_.size()); }

  struct Line {
    std::uint64_t group = 0;
    std::int64_t tag = 0;
    int from = 0;  ///< in the world
    auto operator<=>(const Line&) const = default;
  };
  /// Returns when the bytes are on their way and may be reused.
  void send(int to, std::uint64_t group, std::int64_t tag, const std::byte* data,
            std::size_t bytes);
  using Done = std::function<void(std::exception_ptr)>;
  /// Calls `done` when the message is at `data`, or cannot come; on any thread.
  void recv(const Line& line, std::byte* data, std::size_t bytes, Done done);
  void recv_now(const Line& line, std::byte* data, std::size_t bytes);
  /// The text of rank 0 on all ranks, which call this at the same time.
  std::string from_first(std::string text);

  void wake_all() noexcept override;

 private:
  struct Link {
    Socket socket;
    std::mutex writing;
    std::thread reader;
  };
  struct Awaited {
    std::byte* data;
    std::size_t bytes;
    Done done;
  };
  struct Queue {
    std::deque<Awaited> awaited;
    std::deque<std::vector<std::byte>> arrived;
  };
  void read_all(int from);
  /// Why nothing comes from a rank any more: what the world failed of, which may be known a moment
  /// later than that the connection is gone.
  std::string reason_of_silence(int from) const;
  /// Receives that can no longer come true, all or those from one rank, end with this.
  void give_up(int from, const std::string& why);

  const int rank_;
  const std::shared_ptr<WorldFailure> failure_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; this rank's is not used
  std::mutex mutex_;
  std::map<Line, Queue> queues_;
  std::vector<bool> is_closed_;
  std::atomic<bool> is_closing_ = false;
};

}  // namespace heddle
