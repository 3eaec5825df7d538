#pragma once

#include <atomic>
#include <compare>
#include <condition_variable>
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
/// for its receive. What a connection does not take at once is written by a thread, one message
/// after another, whichever ranks they go to: of two that leave together both would be late.
/// Thread-safe.
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
    int peer = 0;  ///< in the world: who sends what is received, or receives what is sent
    auto operator<=>(const Line&) const = default;
  };
  using Done = std::function<void(std::exception_ptr)>;
  /// Takes a place in line and returns. Calls `done` when the bytes are on their way and may be
  /// reused, or cannot go; on any thread. They are read until `done` is destroyed, which keeps
  /// them.
  void send(const Line& line, const std::byte* data, std::size_t bytes, Done done);
  /// Returns when the bytes are on their way.
  void send_now(const Line& line, const std::byte* data, std::size_t bytes);
  /// Calls `done` when the message is at `data`, or cannot come; on any thread.
  void recv(const Line& line, std::byte* data, std::size_t bytes, Done done);
  void recv_now(const Line& line, std::byte* data, std::size_t bytes);
  /// The text of rank 0 on all ranks, which call this at the same time.
  std::string from_first(std::string text);

  void wake_all() noexcept override;

 private:
  struct Header {
    std::uint64_t magic = 0, group = 0;
    std::int64_t tag = 0;
    std::uint64_t bytes = 0;
  };
  struct Outgoing {
    int to = 0;
    Header header = {};
    const std::byte* data = nullptr;
    std::size_t written = 0;  ///< of header and data together
    Done done = {};
    bool is_waited_for = false;  ///< by a caller who keeps the bytes
    bool is_told = false;        ///< `done` was called
  };
  struct Link {
    Socket socket;
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
  void put_in_line(Outgoing message);
  void write_all();
  void read_all(int from);
  /// Why nothing comes from a rank any more: what the world failed of, which may be known a moment
  /// later than that the connection is gone.
  std::string reason_of_silence(int from) const;
  /// What can no longer come true, of all ranks or of one, ends with this.
  void give_up(int from, const std::string& why);

  const int rank_;
  const std::shared_ptr<WorldFailure> failure_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; this rank's is not used
  std::mutex mutex_;
  std::map<Line, Queue> queues_;
  std::vector<bool> is_closed_;
  std::atomic<bool> is_closing_ = false;

  std::mutex sending_;
  std::condition_variable outgoing_changed_;
  std::deque<Outgoing> outgoing_;  // the first one is being written
  std::thread writer_;             // there from the first message that has to wait
};

}  // namespace heddle
