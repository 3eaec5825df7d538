#include "recover/membership/member_links.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/tcp_listener.h"
#include "recover/membership/note_wire.h"
#include "recover/simulated_network.h"

namespace heddle::recover {
namespace {

using namespace std::chrono_literals;

/// A process that members can send notes to.
class Listening {
 public:
  Listening() : Listening(listen_on(0, 8, TcpReach::this_machine)) {}

  /// A connection for notes.
  Socket call() const {
    const auto until = std::chrono::steady_clock::now() + 20s;
    Socket made = call_once({htonl(INADDR_LOOPBACK), htons(port_)}, until);
    const int on = 1;
    setsockopt(made.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    Hello hello = own_hello(1, 2, 0);
    hello.channel = TcpPost::kChannel;
    EXPECT_TRUE(made && say_hello(made, hello, right_token(), "a test", [] {}));
    return made;
  }
  int notes() const { return notes_; }
  int statuses() const { return statuses_; }
  /// How often somebody was said to be gone.
  int closed() const { return closed_; }

 private:
  explicit Listening(const TcpListener& own)
      : port_(own.port),
        links_(Socket(own.socket), own_hello(0, 2, own.port), right_token(),
               {.on_note = [this](const Note&) { ++notes_; },
                .on_status = [this](const Status&) { ++statuses_; },
                .on_closed = [this](MemberId) { ++closed_; },
                .on_caller = [](const Callers::Guest&) {},
                .on_tick = [] {}}) {
    links_.start();
  }

  const std::uint16_t port_;
  std::atomic<int> notes_ = 0, statuses_ = 0, closed_ = 0;
  MemberLinks links_;
};

/// Whether it was closed there, before anything else was sent.
bool is_closed(const Socket& socket) {
  char byte = 0;
  return is_readable(socket.get(), std::chrono::steady_clock::now() + 20s) &&
         recv(socket.get(), &byte, 1, 0) <= 0;
}

void expect_every_bit_to_be_noticed(const Listening& listening,
                                    const std::vector<std::byte>& message) {
  for (std::size_t bit = 0; bit < 8 * message.size(); ++bit) {
    auto damaged = message;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const Socket to = listening.call();
    ASSERT_TRUE(write_bytes(to.get(), damaged.data(), damaged.size()));
    EXPECT_TRUE(is_closed(to)) << bit;
  }
}

/// A note with a wrong length must not swallow the notes behind it until it is full: whoever sent
/// them would be taken for silent.
TEST(MemberLinks, CloseTheConnectionAtOnceWhereABitWasFlipped) {
  const Listening listening;
  const Note note{.kind = Note::Kind::heartbeat, .run = 1, .from = {.id = 7}, .sequence = 1};
  expect_every_bit_to_be_noticed(listening, seal(note, right_token()));
  expect_every_bit_to_be_noticed(listening,
                                 seal(Status{.run = 1, .from = 7, .cause = "none"}, right_token()));
  EXPECT_EQ(listening.notes(), 0);
  EXPECT_EQ(listening.statuses(), 0);
  const Socket again = listening.call();
  const auto whole = seal(note, right_token());
  ASSERT_TRUE(write_bytes(again.get(), whole.data(), whole.size()));
  while (listening.notes() == 0) std::this_thread::sleep_for(1ms);
}

/// A newcomer may have called a member by two of its addresses, and gives one of them up.
TEST(MemberLinks, AMemberIsGoneWithItsLastConnectionOnly) {
  const Listening listening;
  const auto note = seal(
      {.kind = Note::Kind::heartbeat, .run = 1, .from = {.id = 7}, .sequence = 1}, right_token());
  const auto call = [&](int notes) {
    Socket made = listening.call();
    EXPECT_TRUE(write_bytes(made.get(), note.data(), note.size()));
    while (listening.notes() < notes) std::this_thread::sleep_for(1ms);
    return made;
  };
  Socket first = call(1), second = call(2);
  first = Socket();
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(listening.closed(), 0);
  second = Socket();
  while (listening.closed() == 0) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(listening.closed(), 1);
}

}  // namespace
}  // namespace heddle::recover
