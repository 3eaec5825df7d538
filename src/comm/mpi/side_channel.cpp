#include "comm/mpi/side_channel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <sstream>

#include "base/error.h"
#include "comm/tcp_listener.h"
#include "comm/waiting_line.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kTimeToMeet{60};
constexpr std::chrono::seconds kTimeToIntroduce{3};
constexpr std::size_t kMostKept = 1 << 18;

[[noreturn]] void fail_system(const char* what) {
  fail(ErrorCode::peer, "the watchdog's connection: {}: {}", what, std::strerror(errno));
}

bool wait_for(int socket, short what, Clock::time_point until) {
  pollfd entry{.fd = socket, .events = what, .revents = 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
  return poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(0, left.count()))) == 1;
}

/// One line without its line feed; nothing when it does not come in time.
std::optional<std::string> read_line(int socket, Clock::time_point until) {
  std::string line;
  for (char c = 0; wait_for(socket, POLLIN, until);) {
    const auto got = recv(socket, &c, 1, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
    if (got < 0) continue;
    if (c == '\n') return line;
    line += c;
    if (line.size() > 256) break;
  }
  return std::nullopt;
}

/// IPv4 addresses of this machine, those that other machines can reach first.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
      char text[INET_ADDRSTRLEN];
      const auto* const address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
      if (inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text))) addresses.emplace_back(text);
    }
    freeifaddrs(list);
  }
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& a) { return !a.starts_with("127."); });
  return addresses;
}

void make_ready(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  fcntl(socket, F_SETFD, FD_CLOEXEC);
}

}  // namespace

SideChannel::SideChannel(int rank, int size,
                         const std::function<std::string(std::string)>& from_first) {
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_ < 0) fail_system("eventfd");
  if (rank == 0) {
    listen_and_accept(size, from_first);
  } else {
    connect(rank, from_first(""));
  }
}

SideChannel::~SideChannel() {
  for (const Link& link : links_) {
    if (link.socket >= 0) close(link.socket);
  }
  close(wake_);
}

void SideChannel::listen_and_accept(int size,
                                    const std::function<std::string(std::string)>& from_first) {
  const auto [listening, port] = listen_on(0, size);
  std::random_device random;
  const std::string token = fmt::format("{:08x}{:08x}", random(), random());
  from_first(fmt::format("{} {} {}", token, port, fmt::join(own_addresses(), " ")));
  const auto until = Clock::now() + kTimeToMeet;
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = 1; r < size; ++r) {
      if (std::none_of(links_.begin(), links_.end(), [&](const Link& l) { return l.rank == r; })) {
        ranks.push_back(r);
      }
    }
    return fmt::format("rank{} {} of {}", ranks.size() == 1 ? "" : "s", rank_list(ranks), size);
  };
  WaitingLine line(kTimeToMeet, std::chrono::seconds(5));
  while (links_.size() + 1 < static_cast<std::size_t>(size) && Clock::now() < until) {
    if (!wait_for(listening, POLLIN, std::min(until, Clock::now() + WaitingLine::kTick))) {
      line.show(fmt::format("waiting for {} to connect to port {} of rank 0", missing(), port));
      continue;
    }
    const int caller = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (caller < 0) continue;
    // A stranger does not know the token.
    const auto line = read_line(caller, Clock::now() + kTimeToIntroduce);
    std::istringstream words(line.value_or(""));
    std::string its_token;
    int its_rank = -1;
    words >> its_token >> its_rank;
    if (its_token != token || its_rank <= 0 || its_rank >= size ||
        ::send(caller, "ok\n", 3, MSG_NOSIGNAL) != 3) {
      close(caller);
      continue;
    }
    make_ready(caller);
    std::erase_if(links_, [&](const Link& link) {  // it may try another address, having lost this
      if (link.rank == its_rank) close(link.socket);
      return link.rank == its_rank;
    });
    links_.push_back({.rank = its_rank, .socket = caller});
  }
  close(listening);
  if (links_.size() + 1 < static_cast<std::size_t>(size)) {
    throw Error(ErrorCode::peer,
                fmt::format("{} could not connect to port {} of rank 0 within {} s", missing(),
                            port, kTimeToMeet.count()),
                "allow TCP connections between the machines");
  }
}

void SideChannel::connect(int rank, const std::string& address) {
  std::istringstream words(address);
  std::string token, host;
  std::uint16_t port = 0;
  words >> token >> port;
  std::vector<std::string> hosts;
  while (words >> host) {
    hosts.push_back(host);
    const auto until = Clock::now() + kTimeToIntroduce;
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0) fail_system("socket");
    make_ready(made);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    inet_pton(AF_INET, host.c_str(), &to.sin_addr);
    const std::string greeting = fmt::format("{} {}\n", token, rank);
    int error = 0;
    socklen_t length = sizeof(error);
    const bool is_open = (::connect(made, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0 ||
                          (errno == EINPROGRESS && wait_for(made, POLLOUT, until))) &&
                         getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
    // Rank 0 takes its callers one after another.
    if (is_open &&
        ::send(made, greeting.data(), greeting.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(greeting.size()) &&
        read_line(made, Clock::now() + kTimeToMeet / 2) == "ok") {
      links_.push_back({.rank = 0, .socket = made});
      return;
    }
    close(made);
  }
  throw Error(ErrorCode::peer,
              fmt::format("rank {} cannot connect to port {} of rank 0, whose addresses are {}",
                          rank, port, fmt::join(hosts, ", ")),
              "allow TCP connections between the machines");
}

void SideChannel::wake() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_, &one, sizeof(one)));
}

void SideChannel::send(int rank, std::string_view line, bool must_arrive) {
  for (Link& link : links_) {
    if (link.rank != rank || link.socket < 0) continue;
    if (link.out.size() > kMostKept && !must_arrive) continue;
    link.out += line;
    link.out += '\n';
    write(link);
  }
}

void SideChannel::write(Link& link) {
  while (!link.out.empty() && link.socket >= 0) {
    const auto sent =
        ::send(link.socket, link.out.data(), link.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;  // full, or closed: reading finds that out
    link.out.erase(0, static_cast<std::size_t>(sent));
  }
}

void SideChannel::read(Link& link, std::vector<Event>& events) {
  for (char buffer[4096];;) {
    const auto got = recv(link.socket, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      close(link.socket);
      link.socket = -1;
      break;
    }
    link.in.append(buffer, static_cast<std::size_t>(got));
  }
  std::size_t begin = 0;
  for (std::size_t end; (end = link.in.find('\n', begin)) != std::string::npos; begin = end + 1) {
    events.push_back({.rank = link.rank, .line = link.in.substr(begin, end - begin)});
  }
  link.in.erase(0, begin);
  if (link.socket < 0) events.push_back({.rank = link.rank, .is_closed = true});
}

std::vector<SideChannel::Event> SideChannel::wait(std::chrono::milliseconds longest) {
  std::vector<pollfd> entries = {{.fd = wake_, .events = POLLIN, .revents = 0}};
  for (const Link& link : links_) {
    const short events = link.out.empty() ? POLLIN : POLLIN | POLLOUT;
    entries.push_back({.fd = link.socket, .events = events, .revents = 0});  // -1 is passed over
  }
  poll(entries.data(), entries.size(), static_cast<int>(longest.count()));
  if (entries[0].revents != 0) {
    std::uint64_t count = 0;
    static_cast<void>(!::read(wake_, &count, sizeof(count)));
  }
  std::vector<Event> events;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (entries[i + 1].revents & POLLOUT) write(links_[i]);
    if (entries[i + 1].revents & (POLLIN | POLLHUP | POLLERR)) read(links_[i], events);
  }
  return events;
}

void SideChannel::flush(std::chrono::milliseconds longest) {
  const auto until = Clock::now() + longest;
  for (Link& link : links_) {
    while (link.socket >= 0 && !link.out.empty() && wait_for(link.socket, POLLOUT, until)) {
      const std::size_t before = link.out.size();
      write(link);
      if (link.out.size() == before) break;
    }
  }
}

}  // namespace heddle
