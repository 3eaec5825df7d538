#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace heddle {

/// Owns a socket.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket();
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;

  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

/// A place to call, in network order.
struct SocketAddress {
  std::uint32_t host = 0;
  std::uint16_t port = 0;
  std::string text() const;       ///< "10.0.0.7:29501"
  std::string host_text() const;  ///< "10.0.0.7"
};

/// Error(peer) when no machine has this name.
std::uint32_t host_named(const std::string& name);

/// One attempt. Empty, with errno set, when nobody answers by `until`, or as soon as something
/// comes from the socket `watched`, if there is one.
Socket call_once(const SocketAddress& to, std::chrono::steady_clock::time_point until,
                 int watched = -1);

/// Whether something can be read (also that the other side has closed) before `until`.
bool is_readable(int socket, std::chrono::steady_clock::time_point until);

/// Both wait until all is done; false when the other side is gone.
bool read_bytes(int socket, void* to, std::size_t bytes);
bool write_bytes(int socket, const void* from, std::size_t bytes);
/// Writes what the connection takes of both, one behind the other, without waiting; says how much,
/// or -1 with errno set.
std::ptrdiff_t write_some(int socket, const void* first, std::size_t first_bytes,
                          const void* second, std::size_t second_bytes);

}  // namespace heddle
