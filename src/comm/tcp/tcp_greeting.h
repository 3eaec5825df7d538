#pragma once

#include <cstdint>
#include <string>

#include "comm/tcp/tcp_socket.h"

// What ranks say to each other while they join. Everybody says hello to rank 0, which answers with
// a table of where each rank listens once all are there; then the higher of two ranks calls the
// lower, says hello too, and tells rank 0 that it is ready; when all are, rank 0 says go. Numbers
// are as the machine has them, but for addresses and ports, which are in network order.

namespace heddle {

struct Hello {
  static constexpr std::uint64_t kMagic = 0x31656c6464654811ULL;
  /// Negative: the first version had the rank in this place.
  static constexpr std::int32_t kProtocol = -2;

  std::uint64_t magic = kMagic;
  std::int32_t protocol = kProtocol;
  std::int32_t rank = 0, size = 0;
  std::uint32_t port = 0;  ///< where it listens
  std::int32_t process = 0;
  char machine[68] = {};

  /// "process 4711 on node3", for the reader.
  std::string who() const;
};
static_assert(sizeof(Hello) == 96, "no holes");

/// The hello of this process.
Hello own_hello(int rank, int size, std::uint16_t port);

/// Where a rank listens. No host: on the machine of rank 0.
struct Seat {
  std::uint32_t host = 0, port = 0;
};

/// From rank 0: what follows, and how long it is.
struct Answer {
  enum Kind : std::uint32_t { table = 1, go = 2, refusal = 3 };
  std::uint32_t kind = 0, bytes = 0;
};

/// To rank 0 after the table: all connections are made, or this rank fails and has said why.
enum class Ready : std::uint8_t { yes = 'R', failed = 'X' };

}  // namespace heddle
