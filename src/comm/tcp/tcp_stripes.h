#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/tcp/tcp_pacing.h"
#include "comm/tcp/tcp_socket.h"

namespace heddle {

/// Several connections to one rank that share large messages: each takes the next piece as soon as
/// it can, so that one which has lost packets holds up its own piece only. Messages are numbered
/// by whoever uses this, alike on both sides. One thread writes, one reads.
class TcpStripes {
 public:
  explicit TcpStripes(std::vector<Socket> sockets);
  ~TcpStripes();
  TcpStripes(const TcpStripes&) = delete;
  TcpStripes& operator=(const TcpStripes&) = delete;

  /// Returns when all pieces are on their way; false when a connection is gone.
  bool write(std::uint64_t number, const std::byte* data, std::size_t bytes);

  struct Place {
    std::byte* data = nullptr;  ///< null: not known yet, see announce()
    std::size_t bytes = 0;      ///< of the whole message
  };
  /// Reads pieces until a connection is gone, or something else than pieces comes. `place_of` says
  /// where a message goes; `has_arrived` is told of its bytes as they come.
  void read(const std::function<Place(std::uint64_t number)>& place_of,
            const std::function<void(std::uint64_t number, std::size_t bytes)>& has_arrived);
  /// A message has got its place. Any thread.
  void announce() noexcept;
  /// Ends write() and read(), here and on the other side. Any thread.
  void shut() noexcept;

 private:
  struct Header {
    std::uint64_t magic = 0, number = 0, offset = 0, bytes = 0;
  };
  /// What a connection is in the middle of.
  struct Outgoing {
    Header header = {};
    std::size_t written = 0;  ///< of header and piece together
    bool is_busy = false;
  };
  struct Incoming {
    Header header = {};
    std::size_t read = 0;  ///< the same
    std::byte* to = nullptr;
  };
  enum class Progress { all, waits, held, gone };
  Progress write_piece(int socket, Outgoing& piece, const std::byte* data) const;
  Progress read_pieces(int socket, Incoming& piece,
                       const std::function<Place(std::uint64_t)>& place_of,
                       const std::function<void(std::uint64_t, std::size_t)>& has_arrived) const;

  const std::vector<Socket> sockets_;
  TcpPacing pacing_;
  Socket announced_;  // an event
  std::atomic<bool> is_shut_ = false;
};

}  // namespace heddle
