#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/tcp/tcp_socket.h"
#include "comm/tcp/tcp_stripes.h"
#include "comm/world_failure.h"

namespace heddle {

/// How a rank can be reached. Where there are stripes, large messages are divided over them.
struct TcpLink {
  Socket socket = {};                ///< what join_ranks gave
  std::vector<Socket> stripes = {};  ///< what widen_links added
  bool is_far = false;
};

/// What links do beyond moving messages, in a world that others follow when it has lost ranks.
struct TcpCare {
  /// Every message has checksums, of its payload and of the words before it. One that was damaged
  /// ends the connection. Not with stripes, whose pieces have none.
  bool checks = false;
  /// Nothing comes from a rank any more although the world has not failed: its connection is
  /// closed, or something came damaged. Any thread. Where it is there, all connections end when
  /// the world fails, and with them whoever waits to read or write.
  std::function<void(int rank, const std::string& why)> on_lost = {};
};

/// A link to every other rank, over which messages travel. Messages with the same group, tag and
/// sender arrive in the order of sends. Threads take in whatever comes, so a send never waits for
/// its receive. What a connection does not take at once is written by a thread, one message after
/// another, whichever ranks they go to: of two that leave together both would be late. One that is
/// much shorter goes before those that wait: what it costs them is little beside what it would
/// wait. Every far rank has a line of its own: those to near ones do not wait for it, and long ways
/// are filled by several at a time. Thread-safe.
class TcpLinks {
 public:
  /// `links`: by rank; this rank's own is not used. Whoever waits here is told when the world
  /// fails.
  TcpLinks(int rank, std::vector<TcpLink> links, std::shared_ptr<WorldFailure> failure,
           TcpCare care = {});
  ~TcpLinks();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(links_.size()); }
  bool is_far(int rank) const { return links_[static_cast<std::size_t>(rank)]->sending != nullptr; }

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
  /// The same for a caller who keeps the bytes until the result is there, also when it fails.
  [[nodiscard]] std::future<void> send_kept(const Line& line, const std::byte* data,
                                            std::size_t bytes);
  /// Returns when the bytes are on their way.
  void send_now(const Line& line, const std::byte* data, std::size_t bytes) {
    send_kept(line, data, bytes).get();
  }
  /// Calls `done` when the message is at `data`, or cannot come; on any thread.
  void recv(const Line& line, std::byte* data, std::size_t bytes, Done done);
  void recv_now(const Line& line, std::byte* data, std::size_t bytes);
  /// The text of rank 0 on all ranks, which call this at the same time.
  std::string from_first(std::string text);

 private:
  class Waker;
  void wake_all() noexcept;
  struct Header {
    std::uint64_t magic = 0, group = 0;
    std::int64_t tag = 0;
    std::uint64_t bytes = 0;
    std::uint32_t payload_sum = 0, own_sum = 0;  ///< CRC-32C, of the words before too; or 0
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
  struct Awaited {
    std::byte* data;
    std::size_t bytes;
    Done done;
  };
  /// What came before it was asked for, or is coming.
  struct Arrived {
    std::vector<std::byte> bytes;
    bool is_complete = false;
  };
  struct Queue {
    std::deque<Awaited> awaited;
    std::deque<std::shared_ptr<Arrived>> arrived;
  };
  /// A message whose pieces are coming: to where it is awaited, or to a place of its own.
  struct Incoming {
    Line line;
    Awaited place;
    std::shared_ptr<Arrived> own;
    std::size_t left = 0;
    std::uint32_t sum = 0;
  };
  /// Messages that wait for each other.
  struct Sending {
    std::mutex mutex;
    std::condition_variable changed;
    std::list<Outgoing> outgoing;  // the first one is being written
    std::thread writer;            // there from the first message that has to wait
  };
  struct Link {
    Socket socket;
    std::unique_ptr<TcpStripes> stripes;
    std::unique_ptr<Sending> sending;  // of a far rank: its own
    std::thread reader, piece_reader;
    std::uint64_t striped_out = 0;               // messages divided so far; the writer's
    std::uint64_t striped_in = 0;                // the same that were announced to us
    std::map<std::uint64_t, Incoming> incoming;  // by number
    bool has_damage = false;                     // what came over it is not what was sent
  };
  Link& link(int rank) { return *links_[static_cast<std::size_t>(rank)]; }
  Sending& sending_to(int rank) { return link(rank).sending ? *link(rank).sending : near_; }
  std::vector<Sending*> all_sending();
  bool is_striped(int to, std::size_t bytes) const;
  Header header_for(const Line& line, const std::byte* data, std::size_t bytes) const;
  bool is_whole(const Header& header) const;
  bool is_whole(const Incoming& message) const;
  void put_in_line(Outgoing message);
  /// Behind the one that is being written.
  static void insert(std::list<Outgoing>& line, Outgoing message);
  void write_all(Sending& sending);
  bool write_message(const Outgoing& message);
  void read_all(int from);
  /// Until nothing more can be had; what was being read then, if anything.
  Incoming read_messages(int from);
  /// Takes the place of a message that comes next on a line: where it is awaited, or its own.
  Incoming begin_message(const Line& line, const Header& header);
  void end_message(Incoming& message);
  void match(const Line& line, std::vector<std::pair<Done, std::exception_ptr>>& ended);
  void forget_if_empty(const Line& line);
  void announce_striped(int from, const Line& line, const Header& header);
  void read_pieces(int from);
  /// Nothing more goes or comes: ends whoever reads and writes, here and there.
  void shut(Link& link) const;
  void wait_for_failure(std::chrono::milliseconds longest) const;
  void tell_lost(int from);
  /// Why nothing comes from a rank any more: what the world failed of, which may be known a moment
  /// later than that the connection is gone.
  std::exception_ptr reason_of_silence(int from) const;
  /// The same as far as it is known.
  std::exception_ptr problem_of(int from) const;
  /// What can no longer come true, of all ranks or of one, ends with this.
  void give_up(int from, const std::exception_ptr& why);

  const int rank_;
  const std::shared_ptr<WorldFailure> failure_;
  const TcpCare care_;
  const std::shared_ptr<Waker> waker_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; this rank's is not used
  std::mutex mutex_;                          // of what comes
  std::map<Line, Queue> queues_;              // those with something in them
  std::vector<bool> is_closed_;
  std::atomic<bool> is_closing_ = false;
  Sending near_;  // to all near ranks
};

}  // namespace heddle
