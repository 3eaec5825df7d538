#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/tcp/tcp_links.h"

namespace heddle {
namespace {

/// A message between two ranks. Collectives have tags below 0, a barrier has nothing in it.
struct Message {
  std::uint64_t group;
  std::int64_t tag;
  std::vector<std::byte> bytes;
};

std::vector<std::byte> bytes_of(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(7 * i + 1);
  return bytes;
}

const std::vector<Message> kMessages = {
    {.group = 3, .tag = 1, .bytes = bytes_of(24)},          // is awaited when it comes
    {.group = 0x9e3779b97f4a7c15, .tag = -5, .bytes = {}},  // is asked for later
    {.group = 3, .tag = 1 << 20, .bytes = bytes_of(5)},     // the same
};

std::array<Socket, 2> connected() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return {};
  return {Socket(ends[0]), Socket(ends[1])};
}

/// Of a world of two.
std::vector<TcpLink> links_to(int rank, Socket socket) {
  std::vector<TcpLink> links(2);
  links[static_cast<std::size_t>(rank)].socket = std::move(socket);
  return links;
}

std::vector<std::byte> bytes_on_the_wire() {
  auto [near, far] = connected();
  std::size_t count = 0;
  {
    TcpLinks sender(0, links_to(1, std::move(near)), std::make_shared<WorldFailure>(),
                    {.checks = true});
    for (const Message& message : kMessages) {
      sender.send_now({.group = message.group, .tag = message.tag, .peer = 1}, message.bytes.data(),
                      message.bytes.size());
      count += message.bytes.size();
    }
  }
  std::vector<std::byte> all(4096);
  const auto got = recv(far.get(), all.data(), all.size(), MSG_WAITALL);
  EXPECT_GT(got, static_cast<std::ptrdiff_t>(count));
  all.resize(static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, got)));
  return all;
}

/// Takes all messages from a connection that stays open.
struct Receiver {
  explicit Receiver(const std::vector<std::byte>& wire) {
    auto [near, far] = connected();
    auto links = std::make_shared<TcpLinks>(
        1, links_to(0, std::move(near)), failure,
        TcpCare{.checks = true, .on_lost = [this](int rank, const std::string& why) {
                  failure->fail(why);
                  lost.set_value(rank);
                }});
    std::vector<std::vector<std::byte>> places;
    for (const Message& message : kMessages) places.emplace_back(message.bytes.size());
    std::vector<std::future<bool>> came;
    const auto expect = [&](std::size_t i) {
      auto promise = std::make_shared<std::promise<bool>>();
      came.push_back(promise->get_future());
      links->recv({.group = kMessages[i].group, .tag = kMessages[i].tag, .peer = 0},
                  places[i].data(), places[i].size(),
                  [promise](const std::exception_ptr& problem) { promise->set_value(!problem); });
    };
    expect(0);
    EXPECT_TRUE(write_bytes(far.get(), wire.data(), wire.size()));
    for (std::size_t i = 1; i < kMessages.size(); ++i) expect(i);
    for (std::size_t i = 0; i < kMessages.size(); ++i) {
      has_come.push_back(came[i].get());
      if (has_come.back()) {
        EXPECT_EQ(places[i], kMessages[i].bytes);
      }
    }
  }

  const std::shared_ptr<WorldFailure> failure = std::make_shared<WorldFailure>();
  std::promise<int> lost;
  std::vector<bool> has_come;
};

TEST(TcpDamage, WithoutItAllMessagesCome) {
  const Receiver receiver(bytes_on_the_wire());
  EXPECT_EQ(receiver.has_come, std::vector<bool>(kMessages.size(), true));
  EXPECT_FALSE(receiver.failure->has_failed());
}

/// Wherever it is: in what a message is, how long it is, what is in it, or its checksums. The
/// connection stays open and nothing more comes, as when all wait for all.
TEST(TcpDamage, EveryFlippedBitIsNoticedAndNothingWrongIsTaken) {
  const std::vector<std::byte> wire = bytes_on_the_wire();
  for (std::size_t bit = 0; bit < 8 * wire.size(); ++bit) {
    auto damaged = wire;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    Receiver receiver(damaged);
    EXPECT_EQ(receiver.lost.get_future().get(), 0) << bit;
    EXPECT_EQ(receiver.failure->reason(), "what came from rank 0 was damaged on its way") << bit;
    EXPECT_FALSE(receiver.has_come.back() && receiver.has_come.front() && receiver.has_come[1])
        << bit;
  }
}

}  // namespace
}  // namespace heddle
