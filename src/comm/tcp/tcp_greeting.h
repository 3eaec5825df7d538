#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/tcp/tcp_socket.h"
#include "comm/tcp/tcp_token.h"

// What ranks say to each other while they join. Everybody says hello to rank 0, which answers with
// a table of where each rank listens once all are there; then the higher of two ranks calls the
// lower, says hello too, and tells rank 0 that it is ready; when all are, rank 0 says go. Numbers
// are as the machine has them, but for addresses and ports, which are in network order.
//
// Where there is a token, whoever is called answers a hello with a challenge, which proves that it
// knows the token, and the caller proves the same. A caller that does not is sent away with an
// answer that says why.

namespace heddle {

struct Hello {
  static constexpr std::uint64_t kMagic = 0x31656c6464654811ULL;
  /// Negative: the first version had the rank in this place.
  static constexpr std::int32_t kProtocol = -6;

  std::uint64_t magic = kMagic;
  std::int32_t protocol = kProtocol;
  std::int32_t rank = 0, size = 0;
  std::uint32_t port = 0;  ///< where it listens
  std::int32_t process = 0;
  /// Which of several connections of the pair; 0: the first; see TcpPost.
  std::int32_t channel = 0;
  std::int32_t meeting = 0;  ///< how often ranks of this run have met before
  std::uint32_t has_token = 0;
  Nonce nonce = {};
  char machine[64] = {};

  /// "process 4711 on node3", for the reader.
  std::string who() const;
};
static_assert(sizeof(Hello) == 120, "no holes");

/// The hello of this process.
Hello own_hello(int rank, int size, std::uint16_t port, int meeting = 0);

/// From whoever was called, to a hello with a token.
struct Challenge {
  std::uint32_t has_token = 0;
  Nonce nonce = {};
  Proof proof = {};
};

/// What both sides prove that they know the token for: this hello, on this connection.
std::vector<std::byte> proved(const Hello& hello, const Nonce& nonce);
inline constexpr std::string_view kCaller = "caller", kCalled = "called";

/// Where a rank listens. No host: on the machine of rank 0.
struct Seat {
  std::uint32_t host = 0, port = 0;
};

/// From whoever was called: what follows, and how long it is.
struct Answer {
  enum Kind : std::uint32_t {
    table = 1,  ///< a Seat for each rank; without a port where it does not take part
    go = 2,
    refusal = 3,   ///< a text: joining fails for all, and another rank tells it
    stranger = 4,  ///< a text: this caller is not let in; the others go on
    left = 5       ///< a text: the others go on without this rank, which was one of them
  };
  std::uint32_t kind = 0, bytes = 0;
};

/// To rank 0 after the table: all connections are made, or this rank fails and has said why.
enum class Ready : std::uint8_t { yes = 'R', failed = 'X' };

/// Says hello on a new connection and, where this rank has a token, proves it. `called` names who
/// was called, for messages; `wait` is called now and then while there is no answer, and throws
/// when that takes too long. False when the other side is gone. Error(peer) where its token is
/// another one, or one of the two has none.
bool say_hello(const Socket& to, Hello hello, const Token& token, const std::string& called,
               const std::function<void()>& wait);

inline constexpr const char* kSameTokenHint =
    "give all ranks the same token (HEDDLE_TOKEN_FILE, or HEDDLE_TOKEN)";

}  // namespace heddle
