// Ranks joined by TCP connections. Here they are threads, each of which behaves as a process would.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/collective_cases.h"
#include "comm/tcp/tcp_links.h"
#include "comm/tcp/tcp_world.h"
#include "comm/tcp_listener.h"
#include "comm/training_calls.h"

namespace heddle {
namespace {

/// What each rank's failure says; empty where it did not fail. Rank 0 gets the socket that
/// listens; where there is none, only the port, and it comes late.
std::vector<std::string> run_tcp(int ranks, const std::function<void(World&)>& body,
                                 const TcpListener& meeting) {
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      TcpPlace place{.rank = rank, .size = ranks, .port = meeting.port};
      if (rank == 0) place.listening = meeting.socket;
      if (rank == 0 && meeting.socket < 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      try {
        run_tcp_rank(place, body);
      } catch (const Error& error) {
        failures[static_cast<std::size_t>(rank)] = error.message();
      }
    });
  }
  threads.clear();
  return failures;
}

std::vector<std::string> run_tcp(int ranks, const std::function<void(World&)>& body) {
  return run_tcp(ranks, body, listen_on(0, ranks));
}

class Tcp : public ::testing::TestWithParam<int> {
 protected:
  static void expect_no_failure(const std::function<void(World&)>& body) {
    for (const std::string& failure : run_tcp(GetParam(), body)) EXPECT_EQ(failure, "");
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Tcp, ::testing::Values(1, 2, 3, 4));

TEST_P(Tcp, CollectivesEqualAPlainLoop) {
  expect_no_failure([](World& world) { testing::check_collectives(world, false); });
}
TEST_P(Tcp, CollectivesInTheBackgroundEqualAPlainLoop) {
  expect_no_failure([](World& world) { testing::check_collectives(world, true); });
}
TEST_P(Tcp, MessagesArriveInOrderPerTag) { expect_no_failure(testing::check_messages); }
TEST_P(Tcp, ReceivesMayBePostedFirst) { expect_no_failure(testing::check_early_receives); }
TEST_P(Tcp, SplitsByColorAndKey) { expect_no_failure(testing::check_split); }
TEST_P(Tcp, GroupsWorkAtTheSameTime) { expect_no_failure(testing::check_overlap); }

/// Rank 0, whose peers are the other ends of connections that nobody reads yet.
struct SlowPeers {
  explicit SlowPeers(int peers) {
    std::vector<TcpLink> given(1);
    for (int peer = 1; peer <= peers; ++peer) {
      int ends[2] = {-1, -1};
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
      given.push_back({.socket = Socket(ends[0])});
      far_ends.emplace_back(ends[1]);
    }
    links = std::make_shared<TcpLinks>(0, std::move(given), failure);
  }
  void send(int peer, const std::vector<std::byte>& message, TcpLinks::Done done) const {
    links->send({.group = 1, .tag = 0, .peer = peer}, message.data(), message.size(),
                std::move(done));
  }
  int end_of(int peer) const { return far_ends[static_cast<std::size_t>(peer) - 1].get(); }

  std::vector<Socket> far_ends;
  std::shared_ptr<WorldFailure> failure = std::make_shared<WorldFailure>();
  std::shared_ptr<TcpLinks> links;
};
constexpr std::size_t kHeaderBytes = 40;

TEST(TcpLinks, ALargeMessageTravelsWhileItsSenderGoesOn) {
  const SlowPeers peers(1);
  const std::vector<std::byte> first(8 << 20, std::byte{1}), second(3, std::byte{2});
  std::atomic<int> ended = 0;
  for (const auto* message : {&first, &second}) {
    peers.send(1, *message, [&](const std::exception_ptr& problem) { ended += problem ? 100 : 1; });
  }
  EXPECT_EQ(ended, 0);  // both are in line, and we are here
  std::vector<std::byte> read(first.size() + second.size() + 2 * kHeaderBytes);
  ASSERT_TRUE(read_bytes(peers.end_of(1), read.data(), read.size()));
  EXPECT_TRUE(std::equal(first.begin(), first.end(), read.begin() + kHeaderBytes));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), read.end() - 3));
  while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(ended, 2);
}

// A reader that waits for a good deal at a time once waited for more than was still to come.
TEST(TcpLinks, LargeMessagesOfAnySizeAreReadToTheirEnd) {
  const TcpListener listening = listen_on(0, 1);
  const Socket listener(listening.socket);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const Socket writer = call_once(
      {.host = htonl(INADDR_LOOPBACK), .port = htons(static_cast<std::uint16_t>(listening.port))},
      until);
  const Socket reader(accept(listener.get(), nullptr, nullptr));
  constexpr std::size_t kLeast = 256 << 10;
  constexpr int kMessages = 12000;
  std::atomic<int> read = 0;
  {
    const std::jthread reading([&] {
      std::vector<std::byte> message(kLeast + kMessages);
      while (read < kMessages &&
             read_bytes(reader.get(), message.data(), kLeast + static_cast<std::size_t>(read))) {
        ++read;
      }
    });
    const std::jthread writing([&] {
      const std::vector<std::byte> message(kLeast + kMessages);
      const auto in_time = [&] { return std::chrono::steady_clock::now() < until; };
      for (std::size_t sent = 0; sent < kMessages && in_time(); ++sent) {
        if (!write_bytes(writer.get(), message.data(), kLeast + sent)) break;
        // The next leaves when this one was read, as where an answer is waited for.
        while (read <= static_cast<int>(sent) && in_time()) std::this_thread::yield();
      }
      shutdown(writer.get(), SHUT_RDWR);
    });
  }
  EXPECT_EQ(read, kMessages);
}

TEST(TcpLinks, MessagesToSeveralRanksLeaveOneAfterAnother) {
  const SlowPeers peers(2);
  const std::vector<std::byte> message(8 << 20);
  std::atomic<int> ended = 0;
  const auto end = [&](const std::exception_ptr&) { ++ended; };
  peers.send(1, message, end);
  peers.send(2, message, end);
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(30); };
  EXPECT_FALSE(is_readable(peers.end_of(2), soon()));
  std::vector<std::byte> read(message.size() + kHeaderBytes);
  ASSERT_TRUE(read_bytes(peers.end_of(1), read.data(), read.size()));
  ASSERT_TRUE(read_bytes(peers.end_of(2), read.data(), read.size()));
  while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(TcpLinks, AShortMessagePassesLongOnesThatWait) {
  const SlowPeers peers(1);
  const std::vector<std::byte> under_way(8 << 20, std::byte{1}), waits(8 << 20, std::byte{2}),
      same_line(3, std::byte{3}), other_line(3, std::byte{4});
  std::atomic<int> ended = 0;
  const auto end = [&](const std::exception_ptr&) { ++ended; };
  const auto send = [&](std::int64_t tag, const std::vector<std::byte>& message) {
    peers.links->send({.group = 1, .tag = tag, .peer = 1}, message.data(), message.size(), end);
  };
  send(7, under_way);
  send(7, waits);
  send(8, other_line);
  send(7, same_line);
  for (const auto* message : {&under_way, &other_line, &waits, &same_line}) {
    std::vector<std::byte> read(kHeaderBytes + message->size());
    ASSERT_TRUE(read_bytes(peers.end_of(1), read.data(), read.size()));
    EXPECT_EQ(read.back(), message->back());
  }
  while (ended < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(TcpLinks, AMessageInLineEndsWhenTheWorldFails) {
  const SlowPeers peers(1);
  const std::vector<std::byte> message(8 << 20);
  std::string why;
  peers.send(1, message, [&](const std::exception_ptr& problem) {
    try {
      if (problem) std::rethrow_exception(problem);
    } catch (const Error& error) {
      why = error.message();
    }
  });
  EXPECT_EQ(why, "");
  peers.failure->fail("rank 2 stopped: no memory");
  EXPECT_EQ(why, "rank 2 stopped: no memory");
  EXPECT_THROW(peers.send(1, message, {}), Error);
}

TEST(TcpRanks, CallersWaitUntilTheFirstListens) {
  TcpListener meeting = listen_on(0, 3);
  close(std::exchange(meeting.socket, -1));
  for (const std::string& failure : run_tcp(3, testing::check_messages, meeting)) {
    EXPECT_EQ(failure, "");
  }
}

TEST(TcpRanks, StrangersAreSentAway) {
  const TcpListener meeting = listen_on(0, 4);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(meeting.port);
  const auto stranger = [&] {
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(made, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return made;
  };
  const int silent = stranger(), confused = stranger();
  const std::string text = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(send(confused, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  for (const std::string& failure : run_tcp(2, testing::check_messages, meeting)) {
    EXPECT_EQ(failure, "");
  }
  close(silent);
  close(confused);
}

TEST(TcpRanks, AFailureOfOneStopsTheOthersWithItsReason) {
  const auto failures = run_tcp(4, [](World& world) {
    if (world.rank() == 2) throw Error(ErrorCode::data, "the file is torn");
    testing::train(world);
  });
  EXPECT_EQ(failures[2], "the file is torn");
  for (const std::size_t rank : {0U, 1U, 3U}) {
    EXPECT_EQ(failures[rank], "rank 2 stopped: the file is torn") << rank;
  }
}

}  // namespace
}  // namespace heddle
