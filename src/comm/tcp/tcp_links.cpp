#include "comm/tcp/tcp_links.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <utility>

#include "base/error.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kTimeToJudge{3};
/// What a connection takes beyond what it has sent: with more, messages to several ranks would
/// leave at the same time and all of them late.
constexpr int kUnsentBytes = 128 << 10;
constexpr std::uint64_t kMagic = 0x31656c6464654811ULL;
constexpr std::uint64_t kOwnGroup = ~std::uint64_t{0};  // of the links themselves

/// Something to wait for, and what ends it: it lives until both are done with it.
std::pair<std::future<void>, TcpLinks::Done> awaitable() {
  auto promise = std::make_shared<std::promise<void>>();
  auto future = promise->get_future();
  return {std::move(future), [promise = std::move(promise)](std::exception_ptr problem) {
            problem ? promise->set_exception(std::move(problem)) : promise->set_value();
          }};
}

}  // namespace

TcpLinks::TcpLinks(int rank, std::vector<Socket> sockets, std::shared_ptr<WorldFailure> failure)
    : rank_(rank), failure_(std::move(failure)), is_closed_(sockets.size(), false) {
  for (Socket& socket : sockets) {
    links_.push_back(std::make_unique<Link>());
    links_.back()->socket = std::move(socket);
  }
  for (int other = 0; other < size(); ++other) {
    if (other == rank_) continue;
    Link& link = *links_[static_cast<std::size_t>(other)];
    const int on = 1;
    setsockopt(link.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(link.socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes,
               sizeof(kUnsentBytes));
    link.reader = std::thread([this, other] { read_all(other); });
  }
}

TcpLinks::~TcpLinks() {
  {
    const std::lock_guard lock(sending_);
    is_closing_ = true;
  }
  outgoing_changed_.notify_all();
  for (const auto& link : links_) {
    if (link->socket) shutdown(link->socket.get(), SHUT_RDWR);
  }
  for (const auto& link : links_) {
    if (link->reader.joinable()) link->reader.join();
  }
  if (writer_.joinable()) writer_.join();
}

void TcpLinks::send(const Line& line, const std::byte* data, std::size_t bytes, Done done) {
  put_in_line({.to = line.peer,
               .header = {kMagic, line.group, line.tag, bytes},
               .data = data,
               .done = std::move(done)});
}

void TcpLinks::send_now(const Line& line, const std::byte* data, std::size_t bytes) {
  auto [sent, done] = awaitable();
  put_in_line({.to = line.peer,
               .header = {kMagic, line.group, line.tag, bytes},
               .data = data,
               .done = std::move(done),
               .is_waited_for = true});
  sent.get();
}

/// What the connection takes at once goes without a change of thread.
void TcpLinks::put_in_line(Outgoing message) {
  std::unique_lock lock(sending_);
  failure_->check();  // under the lock: whoever is in line when the world fails is told
  if (outgoing_.empty()) {
    const int socket = links_[static_cast<std::size_t>(message.to)]->socket.get();
    message.written =
        write_at_once(socket, &message.header, sizeof(Header), message.data, message.header.bytes);
    if (message.written == sizeof(Header) + message.header.bytes) {
      lock.unlock();
      return message.done(nullptr);
    }
  }
  outgoing_.push_back(std::move(message));
  if (!writer_.joinable()) writer_ = std::thread([this] { write_all(); });
  outgoing_changed_.notify_one();
}

void TcpLinks::write_all() {
  for (std::unique_lock lock(sending_);;) {
    outgoing_changed_.wait(lock, [&] { return is_closing_ || !outgoing_.empty(); });
    if (outgoing_.empty()) return;
    const Outgoing& message = outgoing_.front();  // its place stays while others come
    lock.unlock();
    const int to = message.to, socket = links_[static_cast<std::size_t>(to)]->socket.get();
    const std::size_t of_header = std::min(message.written, sizeof(Header));
    const bool is_sent =
        write_bytes(socket, reinterpret_cast<const std::byte*>(&message.header) + of_header,
                    sizeof(Header) - of_header) &&
        write_bytes(socket, message.data + (message.written - of_header),
                    message.header.bytes - (message.written - of_header));
    const auto problem =
        is_sent ? nullptr : std::make_exception_ptr(Error(ErrorCode::peer, reason_of_silence(to)));
    lock.lock();
    const Outgoing ended = std::move(outgoing_.front());
    outgoing_.pop_front();
    lock.unlock();
    if (!ended.is_told) ended.done(problem);
    lock.lock();
  }
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
                                               line.peer, message.size(), bytes)));
      }
    } else if (failure_->has_failed() || is_closed_[static_cast<std::size_t>(line.peer)]) {
      const std::string why =
          failure_->has_failed() ? failure_->reason() : fmt::format("rank {} is gone", line.peer);
      problem = std::make_exception_ptr(Error(ErrorCode::peer, why));
    } else {
      queue.awaited.push_back({data, bytes, std::move(done)});
      return;
    }
  }
  done(problem);
}

void TcpLinks::recv_now(const Line& line, std::byte* data, std::size_t bytes) {
  auto [arrived, done] = awaitable();
  recv(line, data, bytes, std::move(done));
  arrived.get();
}

std::string TcpLinks::from_first(std::string text) {
  std::array<std::byte, 4096> page{};
  if (rank_ == 0) {
    if (text.size() >= page.size()) fail(ErrorCode::internal, "a text of {} bytes", text.size());
    std::memcpy(page.data(), text.data(), text.size());
    for (int other = 1; other < size(); ++other) {
      send_now({.group = kOwnGroup, .tag = 0, .peer = other}, page.data(), page.size());
    }
    return text;
  }
  recv_now({.group = kOwnGroup, .tag = 0, .peer = 0}, page.data(), page.size());
  return reinterpret_cast<const char*>(page.data());
}

void TcpLinks::read_all(int from) {
  const int socket = links_[static_cast<std::size_t>(from)]->socket.get();
  Header header;
  while (read_bytes(socket, &header, sizeof(header)) && header.magic == kMagic) {
    const Line line{.group = header.group, .tag = header.tag, .peer = from};
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
      if (from >= 0 && line.peer != from) continue;
      for (Awaited& place : queue.awaited) waiting.push_back(std::move(place.done));
      queue.awaited.clear();
    }
  }
  {
    const std::lock_guard lock(sending_);
    for (Outgoing& message : outgoing_) {
      if (from >= 0 && message.to != from) continue;
      if (message.is_waited_for || std::exchange(message.is_told, true)) continue;
      waiting.push_back(message.done);  // a copy: the bytes may still be read
    }
  }
  for (const Done& done : waiting) done(std::make_exception_ptr(Error(ErrorCode::peer, why)));
}

void TcpLinks::wake_all() noexcept { give_up(-1, failure_->reason()); }

}  // namespace heddle
