#include "comm/tcp/tcp_links.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <utility>

#include "base/error.h"
#include "comm/tcp_listener.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kTimeToMeet{120};
constexpr std::chrono::seconds kTimeToGreet{2};
constexpr std::chrono::seconds kTimeToJudge{3};
constexpr std::uint64_t kMagic = 0x31656c6464654811ULL;
constexpr std::uint64_t kOwnGroup = ~std::uint64_t{0};  // of the links themselves

struct Header {
  std::uint64_t magic = kMagic, group = 0;
  std::int64_t tag = 0;
  std::uint64_t bytes = 0;
};

struct Hello {
  std::uint64_t magic = kMagic;
  std::int32_t rank = 0;
  std::uint32_t address = 0;  // of network order, as is the port
  std::uint32_t port = 0;
};

[[noreturn]] void fail_system(const std::string& what) {
  throw Error(ErrorCode::peer, fmt::format("{}: {}", what, std::strerror(errno)),
              "check MASTER_ADDR and MASTER_PORT, and that TCP connections are allowed");
}

bool read_bytes(int socket, void* to, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const auto got = ::recv(socket, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_bytes(int socket, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const auto put = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

std::uint32_t address_of(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || found == nullptr) {
    throw Error(ErrorCode::peer, fmt::format("there is no machine named \"{}\"", host),
                "check MASTER_ADDR");
  }
  const auto address = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr;
  freeaddrinfo(found);
  return address;
}

/// A connection from a port to itself is what connect() makes where nobody listens yet on a port
/// that the system then happens to give to the caller.
bool is_to_itself(int socket) {
  sockaddr_in own{}, other{};
  socklen_t own_length = sizeof(own), other_length = sizeof(other);
  return getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_length) == 0 &&
         own.sin_port == other.sin_port && own.sin_addr.s_addr == other.sin_addr.s_addr;
}

/// Tries until the other side listens.
int call(std::uint32_t address, std::uint32_t port, Clock::time_point until) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = address;
  to.sin_port = static_cast<std::uint16_t>(port);
  while (true) {
    const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made >= 0 && connect(made, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
        !is_to_itself(made)) {
      return made;
    }
    if (Clock::now() >= until) fail_system("connecting to another rank");
    if (made >= 0) close(made);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// How long a read waits; 0: for ever.
void set_patience(int socket, std::chrono::seconds time) {
  const timeval limit{.tv_sec = time.count(), .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

/// The next caller that says a proper hello. A stranger, who says nothing or something else, is
/// sent away.
int answer(int listening, Hello& hello, Clock::time_point until) {
  while (true) {
    pollfd entry{.fd = listening, .events = POLLIN, .revents = 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    const int ready = left.count() <= 0 ? 0 : poll(&entry, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready != 1) {
      throw Error(ErrorCode::peer, "not all ranks came within two minutes",
                  "check that every rank was started, with the same MASTER_ADDR and MASTER_PORT");
    }
    sockaddr_in from{};
    socklen_t length = sizeof(from);
    const int caller =
        accept4(listening, reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC);
    if (caller < 0) continue;
    set_patience(caller, kTimeToGreet);
    if (read_bytes(caller, &hello, sizeof(hello)) && hello.magic == kMagic) {
      set_patience(caller, {});
      hello.address = from.sin_addr.s_addr;
      return caller;
    }
    close(caller);
  }
}

}  // namespace

TcpLinks::TcpLinks(const TcpPlace& place, std::shared_ptr<WorldFailure> failure)
    : rank_(place.rank), failure_(std::move(failure)) {
  const auto until = Clock::now() + kTimeToMeet;
  const auto ranks = static_cast<std::size_t>(place.size);
  for (std::size_t i = 0; i < ranks; ++i) links_.push_back(std::make_unique<Link>());
  is_closed_.resize(ranks, false);
  const auto link = [this](int rank) -> Link& { return *links_[static_cast<std::size_t>(rank)]; };
  const auto [listening, port] = place.listening >= 0
                                     ? TcpListener{place.listening, place.port}
                                     : listen_on(rank_ == 0 ? place.port : 0, place.size);
  std::vector<Hello> table(ranks);
  // Everybody tells rank 0 where it listens and gets the table of all; then the higher of two ranks
  // calls the lower.
  if (rank_ == 0) {
    for (std::size_t i = 1; i < ranks; ++i) {
      Hello hello;
      const int caller = answer(listening, hello, until);
      if (hello.rank <= 0 || hello.rank >= place.size || link(hello.rank).socket >= 0) {
        throw Error(ErrorCode::peer, fmt::format("two processes say they are rank {}", hello.rank),
                    "give every process a RANK of its own");
      }
      link(hello.rank).socket = caller;
      table[static_cast<std::size_t>(hello.rank)] = hello;
    }
    for (std::size_t i = 1; i < ranks; ++i) {
      write_bytes(links_[i]->socket, table.data(), ranks * sizeof(Hello));
    }
  } else {
    const Hello own{.rank = rank_, .port = htons(port)};
    link(0).socket = call(address_of(place.address), htons(place.port), until);
    if (!write_bytes(link(0).socket, &own, sizeof(own)) ||
        !read_bytes(link(0).socket, table.data(), ranks * sizeof(Hello))) {
      fail_system("meeting rank 0");
    }
    for (int lower = 1; lower < rank_; ++lower) {
      const Hello& other = table[static_cast<std::size_t>(lower)];
      link(lower).socket = call(other.address, other.port, until);
      write_bytes(link(lower).socket, &own, sizeof(own));
    }
    for (int i = rank_ + 1; i < place.size; ++i) {
      Hello hello;
      const int caller = answer(listening, hello, until);
      link(hello.rank).socket = caller;
    }
  }
  close(listening);
  for (int other = 0; other < place.size; ++other) {
    if (other == rank_) continue;
    const int on = 1;
    setsockopt(link(other).socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    link(other).reader = std::thread([this, other] { read_all(other); });
  }
}

TcpLinks::~TcpLinks() {
  is_closing_ = true;
  for (const auto& link : links_) {
    if (link->socket >= 0) shutdown(link->socket, SHUT_RDWR);
  }
  for (const auto& link : links_) {
    if (link->reader.joinable()) link->reader.join();
    if (link->socket >= 0) close(link->socket);
  }
}

void TcpLinks::send(int to, std::uint64_t group, std::int64_t tag, const std::byte* data,
                    std::size_t bytes) {
  failure_->check();
  Link& link = *links_[static_cast<std::size_t>(to)];
  const Header header{.group = group, .tag = tag, .bytes = bytes};
  const std::lock_guard lock(link.writing);
  if (write_bytes(link.socket, &header, sizeof(header)) && write_bytes(link.socket, data, bytes)) {
    return;
  }
  throw Error(ErrorCode::peer, reason_of_silence(to));
}

std::string TcpLinks::reason_of_silence(int from) const {
  const auto until = Clock::now() + kTimeToJudge;
  while (!failure_->has_failed() && !is_closing_ && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return failure_->has_failed() ? failure_->reason() : fmt::format("rank {} is gone", from);
}

void TcpLinks::recv(const Line& line, std::byte* data, std::size_t bytes, Done done) {
  std::exception_ptr problem;
  {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[line];
    if (!queue.arrived.empty()) {
      const auto message = std::move(queue.arrived.front());
      queue.arrived.pop_front();
      if (message.size() == bytes) {
        if (bytes > 0) std::memcpy(data, message.data(), bytes);
      } else {
        problem = std::make_exception_ptr(
            Error(ErrorCode::peer, fmt::format("rank {} sends {} bytes where {} are expected",
                                               line.from, message.size(), bytes)));
      }
    } else if (failure_->has_failed() || is_closed_[static_cast<std::size_t>(line.from)]) {
      const std::string why =
          failure_->has_failed() ? failure_->reason() : fmt::format("rank {} is gone", line.from);
      problem = std::make_exception_ptr(Error(ErrorCode::peer, why));
    } else {
      queue.awaited.push_back({data, bytes, std::move(done)});
      return;
    }
  }
  done(problem);
}

void TcpLinks::recv_now(const Line& line, std::byte* data, std::size_t bytes) {
  std::promise<void> arrived;
  recv(line, data, bytes, [&arrived](std::exception_ptr problem) {
    problem ? arrived.set_exception(std::move(problem)) : arrived.set_value();
  });
  arrived.get_future().get();
}

std::string TcpLinks::from_first(std::string text) {
  std::array<std::byte, 4096> page{};
  if (rank_ == 0) {
    if (text.size() >= page.size()) fail(ErrorCode::internal, "a text of {} bytes", text.size());
    std::memcpy(page.data(), text.data(), text.size());
    for (int other = 1; other < size(); ++other) {
      send(other, kOwnGroup, 0, page.data(), page.size());
    }
    return text;
  }
  recv_now({.group = kOwnGroup, .tag = 0, .from = 0}, page.data(), page.size());
  return reinterpret_cast<const char*>(page.data());
}

void TcpLinks::read_all(int from) {
  const int socket = links_[static_cast<std::size_t>(from)]->socket;
  Header header;
  while (read_bytes(socket, &header, sizeof(header)) && header.magic == kMagic) {
    const Line line{.group = header.group, .tag = header.tag, .from = from};
    Awaited place{};
    {
      const std::lock_guard lock(mutex_);
      Queue& queue = queues_[line];
      if (!queue.awaited.empty() && queue.awaited.front().bytes == header.bytes) {
        place = std::move(queue.awaited.front());
        queue.awaited.pop_front();
      }
    }
    if (place.done) {
      if (!read_bytes(socket, place.data, place.bytes)) {
        place.done(std::make_exception_ptr(Error(ErrorCode::peer, reason_of_silence(from))));
        break;
      }
      place.done(nullptr);
      continue;
    }
    std::vector<std::byte> message(header.bytes);
    if (!read_bytes(socket, message.data(), message.size())) break;
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[line];
    queue.arrived.push_back(std::move(message));
    // A receive may have been posted meanwhile.
    while (!queue.awaited.empty() && !queue.arrived.empty()) {
      Awaited next = std::move(queue.awaited.front());
      queue.awaited.pop_front();
      const auto bytes = std::move(queue.arrived.front());
      queue.arrived.pop_front();
      if (bytes.size() == next.bytes) {
        if (next.bytes > 0) std::memcpy(next.data, bytes.data(), next.bytes);
        next.done(nullptr);
      } else {
        next.done(std::make_exception_ptr(
            Error(ErrorCode::peer, fmt::format("rank {} sends {} bytes where {} are expected", from,
                                               bytes.size(), next.bytes))));
      }
    }
  }
  give_up(from, reason_of_silence(from));
}

void TcpLinks::give_up(int from, const std::string& why) {
  std::vector<Done> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (from >= 0) is_closed_[static_cast<std::size_t>(from)] = true;
    for (auto& [line, queue] : queues_) {
      if (from >= 0 && line.from != from) continue;
      for (Awaited& place : queue.awaited) waiting.push_back(std::move(place.done));
      queue.awaited.clear();
    }
  }
  for (const Done& done : waiting) done(std::make_exception_ptr(Error(ErrorCode::peer, why)));
}

void TcpLinks::wake_all() noexcept { give_up(-1, failure_->reason()); }

}  // namespace heddle
