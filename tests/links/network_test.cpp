// What a network of shaped links promises, measured with plain sockets.
#include "links/network.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

#include "base/error.h"

namespace heddle::links {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

sockaddr_in address_of(int rank, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, Network::address(rank).c_str(), &address.sin_addr);
  return address;
}

Descriptor socket_of(const Network& network, int rank, int type) {
  const Inside inside(network, rank);
  Descriptor made(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
  // Nothing waits for ever, and nothing is dropped on the way into the socket.
  const timeval patience{.tv_sec = 5, .tv_usec = 0};
  const int buffer_bytes = 16 << 20;
  ::setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (type == SOCK_DGRAM) {
    ::setsockopt(made.get(), SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof(buffer_bytes));
  }
  return made;
}

/// Sends datagrams with their number and the time of sending.
struct Datagram {
  int number = 0;
  Clock::time_point sent;
};

class Mailbox {
 public:
  Mailbox(const Network& network, int rank) : socket_(socket_of(network, rank, SOCK_DGRAM)) {
    const auto address = address_of(rank, 7000);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
  }
  void send(int rank, int number) const {
    const auto to = address_of(rank, 7000);
    const Datagram datagram{number, Clock::now()};
    EXPECT_GT(::sendto(socket_.get(), &datagram, sizeof(datagram), 0,
                       reinterpret_cast<const sockaddr*>(&to), sizeof(to)),
              0);
  }
  std::optional<Datagram> receive(milliseconds patience) const {
    const timeval limit{.tv_sec = patience.count() / 1000,
                        .tv_usec = patience.count() % 1000 * 1000};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    Datagram datagram;
    if (::recv(socket_.get(), &datagram, sizeof(datagram), 0) != sizeof(datagram)) return {};
    return datagram;
  }

 private:
  Descriptor socket_;
};

/// A TCP connection whose sender never rests.
class Flow {
 public:
  Flow(const Network& network, int from, int to) {
    const auto address = address_of(to, 7001 + from);
    const auto* at = reinterpret_cast<const sockaddr*>(&address);
    const Descriptor listener = socket_of(network, to, SOCK_STREAM);
    EXPECT_EQ(::bind(listener.get(), at, sizeof(address)), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    sender_ = std::make_unique<Descriptor>(socket_of(network, from, SOCK_STREAM));
    EXPECT_EQ(::connect(sender_->get(), at, sizeof(address)), 0);
    receiver_ = std::make_unique<Descriptor>(::accept(listener.get(), nullptr, nullptr));
    sending_ = std::thread([this] {
      go_before_others();
      const std::vector<char> block(1 << 16);
      while (::send(sender_->get(), block.data(), block.size(), MSG_NOSIGNAL) > 0) {
      }
    });
    receiving_ = std::thread([this] {
      go_before_others();
      std::vector<char> block(1 << 20);
      ssize_t bytes = 0;
      while ((bytes = ::recv(receiver_->get(), block.data(), block.size(), 0)) > 0) {
        received_bytes_ += bytes;
      }
    });
  }
  ~Flow() {
    ::shutdown(sender_->get(), SHUT_RDWR);
    ::shutdown(receiver_->get(), SHUT_RDWR);
    sending_.join();
    receiving_.join();
  }
  /// Of IP packets with their headers, over this time from now.
  double bits_per_second(milliseconds time, int mtu) const {
    const auto start = Clock::now();
    const auto before = received_bytes_.load();
    std::this_thread::sleep_for(time);
    const double bytes = static_cast<double>(received_bytes_ - before);
    constexpr double kHeaderBytes = 52;  // IP, TCP and its time stamps
    return bytes * 8 * mtu / (mtu - kHeaderBytes) / seconds(Clock::now() - start);
  }

 private:
  std::unique_ptr<Descriptor> sender_, receiver_;
  std::atomic<std::int64_t> received_bytes_{0};
  std::thread sending_, receiving_;
};

class ShapedNetwork : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = Network::missing()) GTEST_SKIP() << *missing;
  }
};

/// The measurement nearest to `expected` of a few, for a machine that does other work as well.
template <class Measure>
double nearest_of_tries(double expected, double tolerance, Measure measure) {
  double nearest = -1e30;
  for (int i = 0; i < 6 && std::abs(nearest - expected) > tolerance * expected; ++i) {
    const double measured = measure();
    if (std::abs(measured - expected) < std::abs(nearest - expected)) nearest = measured;
  }
  return nearest;
}

TEST_F(ShapedNetwork, CarriesTheRateItWasGiven) {
  struct Case {
    const char* rate;
    double expected, tolerance;
    int mtu;
  };
  // The upper end of what it is good for, on a machine that may be busy: less tight.
  for (const Case& tried : {Case{"10mbit", 10e6, 0.05, 1500}, Case{"100mbit", 100e6, 0.05, 1500},
                            Case{"1gbit", 1000e6, 0.1, 9000}}) {
    Network network(
        {.statements = {std::string("link queue=1s rate=") + tried.rate}, .mtu = tried.mtu});
    const Flow flow(network, 0, 1);
    std::this_thread::sleep_for(milliseconds(300));
    const double measured = nearest_of_tries(tried.expected, tried.tolerance, [&] {
      return flow.bits_per_second(milliseconds(600), tried.mtu);
    });
    RecordProperty(tried.rate, std::to_string(measured / 1e6));
    EXPECT_NEAR(measured, tried.expected, tried.expected * tried.tolerance) << tried.rate;
  }
}

/// Of a new flow, in Mbit/s.
double rate_of(const Network& network, int from, int to, double expected) {
  const Flow flow(network, from, to);
  std::this_thread::sleep_for(milliseconds(300));
  return nearest_of_tries(expected, 0.05,
                          [&] { return flow.bits_per_second(milliseconds(600), 1500) / 1e6; });
}

TEST_F(ShapedNetwork, GivesEachDirectionItsOwnRate) {
  const Network network(
      {.statements = {"link queue=1s", "oneway 0,1 rate=40mbit", "oneway 1,0 rate=8mbit"}});
  EXPECT_NEAR(rate_of(network, 0, 1, 40), 40, 2);
  EXPECT_NEAR(rate_of(network, 1, 0, 8), 8, 0.4);
}

TEST_F(ShapedNetwork, KeepsItsRateWhereItRestsBetweenPackets) {
  const Network network(
      {.statements = {"link queue=1s rate=40mbit"}, .rest = std::chrono::microseconds(500)});
  EXPECT_NEAR(rate_of(network, 0, 1, 40), 40, 2);
}

TEST_F(ShapedNetwork, TakesTheDelayBothWays) {
  for (const int delay : {0, 10, 50}) {
    Network network({.statements = {"link delay=" + std::to_string(delay) + "ms"}});
    const Mailbox here(network, 0), there(network, 1);
    const double most = 2 * delay * 1.05 + 1;
    double shortest = 1e30;
    // A machine with much else to do gets more turns.
    for (int i = 0; i < 10 || (i < 100 && shortest > most); ++i) {
      const auto start = Clock::now();
      here.send(1, i);
      ASSERT_TRUE(there.receive(milliseconds(5000)));
      there.send(0, i);
      ASSERT_TRUE(here.receive(milliseconds(5000)));
      shortest = std::min(shortest, 1000 * seconds(Clock::now() - start));
    }
    RecordProperty("delay_" + std::to_string(delay), std::to_string(shortest));
    EXPECT_GE(shortest, 2 * delay);
    EXPECT_LE(shortest, most);
  }
}

TEST_F(ShapedNetwork, SpreadsDelaysByTheJitter) {
  Network network({.statements = {"link delay=5ms jitter=20ms reorder=yes"}});
  const Mailbox here(network, 0), there(network, 1);
  std::vector<double> delays;
  std::thread sending([&] {
    for (int i = 0; i < 100; ++i) {
      here.send(1, i);
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  int last = -1, overtaken = 0;
  for (int i = 0; i < 100; ++i) {
    const auto datagram = there.receive(milliseconds(5000));
    if (!datagram) break;
    delays.push_back(1000 * seconds(Clock::now() - datagram->sent));
    overtaken += datagram->number < last;
    last = datagram->number;
  }
  sending.join();
  ASSERT_EQ(delays.size(), 100u);
  std::sort(delays.begin(), delays.end());
  EXPECT_GE(delays.front(), 5);
  EXPECT_LT(delays[10], 5 + 6);    // 10 % of a uniform spread is at 7 ms
  EXPECT_NEAR(delays[50], 15, 5);  // the middle
  EXPECT_GT(delays[90], 25 - 6);   // 90 % is at 23 ms
  EXPECT_GT(overtaken, 0);
}

std::vector<int> arrived_of(std::uint64_t seed) {
  Network network({.statements = {"link loss=0.1"}, .seed = seed});
  const Mailbox here(network, 0), there(network, 1);
  for (int i = 0; i < 2000; ++i) here.send(1, i);
  std::vector<int> arrived;
  while (const auto datagram = there.receive(milliseconds(300)))
    arrived.push_back(datagram->number);
  return arrived;
}

TEST_F(ShapedNetwork, LosesTheShareItWasTold) {
  const auto arrived = arrived_of(1);
  EXPECT_NEAR(static_cast<double>(arrived.size()), 1800, 5 * 13.4);  // 5 standard deviations
  EXPECT_TRUE(std::is_sorted(arrived.begin(), arrived.end()));
  EXPECT_EQ(arrived, arrived_of(1));
  EXPECT_NE(arrived, arrived_of(2));
}

TEST_F(ShapedNetwork, PassesNothingWhileCutAndAllAfterwards) {
  Network network({.ranks = 3});
  const Mailbox zero(network, 0), one(network, 1), two(network, 2);
  zero.send(1, 1);
  ASSERT_TRUE(one.receive(milliseconds(5000)));
  network.apply("cut 1");
  zero.send(1, 2);
  one.send(0, 3);
  zero.send(2, 4);
  EXPECT_TRUE(two.receive(milliseconds(5000)));
  EXPECT_FALSE(one.receive(milliseconds(200)));
  EXPECT_FALSE(zero.receive(milliseconds(1)));
  network.apply("restore 1");
  zero.send(1, 5);
  const auto after = one.receive(milliseconds(5000));
  ASSERT_TRUE(after);
  EXPECT_EQ(after->number, 5);
}

TEST_F(ShapedNetwork, ChangesALinkInUse) {
  Network network({.statements = {"link rate=40mbit"}});
  const Flow flow(network, 0, 1);
  std::this_thread::sleep_for(milliseconds(300));
  network.apply("link 0,1 rate=8mbit");
  std::this_thread::sleep_for(milliseconds(300));
  const double changed =
      nearest_of_tries(8e6, 0.1, [&] { return flow.bits_per_second(milliseconds(500), 1500); });
  EXPECT_NEAR(changed, 8e6, 0.8e6);
}

TEST_F(ShapedNetwork, RefusesBadOptionsByName) {
  const auto message_of = [](const NetworkOptions& options) -> std::string {
    try {
      Network network(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_NE(message_of({.ranks = 0}).find("0 ranks"), std::string::npos);
  EXPECT_NE(message_of({.ranks = 251}).find("use 1 to 250"), std::string::npos);
  EXPECT_NE(message_of({.mtu = 100}).find("MTU of 100"), std::string::npos);
  EXPECT_NE(message_of({.sysctls = {"net.ipv4.no_such=1"}}).find("no_such"), std::string::npos);
  EXPECT_NE(message_of({.sysctls = {"net.ipv4.tcp_congestion_control=warp"}}).find("warp"),
            std::string::npos);
}

}  // namespace
}  // namespace heddle::links
