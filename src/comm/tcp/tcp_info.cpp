#include "comm/tcp/tcp_info.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>

namespace heddle {

std::optional<TcpInfo> tcp_info(const Socket& socket) {
  // In the words of the kernel's tcp_info, of which libraries' headers know the beginning only:
  // tcpi_snd_mss, tcpi_rtt, tcpi_min_rtt (microseconds), tcpi_delivered (segments).
  constexpr std::size_t kSegment = 16 / 4, kRoundTrip = 68 / 4, kLeastRoundTrip = 148 / 4,
                        kDelivered = 192 / 4, kWords = 256 / 4;
  std::array<std::uint32_t, kWords> words{};
  socklen_t length = sizeof(words);
  if (getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, words.data(), &length) != 0) return {};
  const auto has = [&](std::size_t word) { return length >= (word + 1) * sizeof(words[0]); };
  TcpInfo info;
  info.round_trip = 1e-6 * words[kRoundTrip];
  if (has(kLeastRoundTrip) && words[kLeastRoundTrip] != ~std::uint32_t{0}) {
    info.least_round_trip = 1e-6 * words[kLeastRoundTrip];
  }
  if (has(kDelivered)) info.delivered = static_cast<double>(words[kDelivered]) * words[kSegment];
  return info;
}

}  // namespace heddle
