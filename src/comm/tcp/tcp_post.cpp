#include "comm/tcp/tcp_post.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "base/error.h"
#include "comm/tcp/tcp_measure.h"

namespace heddle {
namespace {

using namespace std::chrono_literals;

Hello for_post(Hello hello) {
  hello.channel = TcpPost::kChannel;
  return hello;
}

constexpr auto kTimeToReach = 2s;
/// Between two attempts.
constexpr auto kBetweenCalls = 50ms;
/// Some seconds of heartbeats: of one that is frozen for longer nothing is expected any more.
constexpr std::size_t kMostWaiting = 256;

}  // namespace

TcpPost::TcpPost(const SocketAddress& to, const Hello& hello, const Token& token)
    : to_(to),
      hello_(for_post(hello)),
      token_(token),
      stopping_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!stopping_) fail(ErrorCode::resources, "no event for a connection between ranks");
  thread_ = std::thread([this] { run(); });
}

TcpPost::~TcpPost() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    const std::uint64_t one = 1;
    static_cast<void>(!::write(stopping_.get(), &one, sizeof(one)));
    if (socket_) shutdown(socket_.get(), SHUT_RDWR);
  }
  changed_.notify_all();
  thread_.join();
}

void TcpPost::send(Message message) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() == kMostWaiting) waiting_.pop_front();
    waiting_.push_back(std::move(message));
  }
  changed_.notify_all();
}

void TcpPost::flush(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [this] { return waiting_.empty() && !is_writing_; });
}

std::string TcpPost::refusal() {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void TcpPost::run() {
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    is_writing_ = true;
    if (!socket_) {
      lock.unlock();
      const bool is_connected = connect();
      lock.lock();
      if (!is_connected) {
        socket_ = Socket();
        is_writing_ = false;
        changed_.wait_for(lock, kBetweenCalls, [this] { return is_stopping_; });
        continue;
      }
    }
    const Message message = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const bool is_written = write_bytes(socket_.get(), message->data(), message->size());
    round_trip_ =
        std::chrono::duration_cast<std::chrono::nanoseconds>(heddle::round_trip(socket_)).count();
    lock.lock();
    if (!is_written) socket_ = Socket();
    is_writing_ = false;
    if (waiting_.empty()) changed_.notify_all();
  }
}

bool TcpPost::connect() {
  const auto until = Clock::now() + kTimeToReach;
  Socket made = call_once(to_, until, stopping_.get());
  if (!made) return false;
  const int on = 1;
  setsockopt(made.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) return false;
    socket_ = std::move(made);
  }
  struct NotInTime {};
  std::string refusal;
  bool is_there = false;
  try {
    is_there = say_hello(socket_, hello_, token_, to_.text(), [&] {
      if (Clock::now() >= until) throw NotInTime{};
    });
  } catch (const NotInTime&) {
    return false;
  } catch (const Error& error) {  // it is somebody else by now
    refusal = error.message();
  }
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(refusal);
  return is_there;
}

}  // namespace heddle
