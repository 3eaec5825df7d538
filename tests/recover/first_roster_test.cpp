#include "recover/membership/first_roster.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <thread>

#include "comm/tcp_listener.h"
#include "recover/simulated_network.h"

namespace heddle::recover {
namespace {

constexpr std::chrono::seconds kLong{60};

/// One of this machine's addresses that others could call; nothing: it has none.
std::optional<std::uint32_t> outer_host() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return std::nullopt;
  std::optional<std::uint32_t> found;
  for (const ifaddrs* one = all; one != nullptr && !found; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const std::uint32_t host = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr;
    if (!is_loopback(host)) found = host;
  }
  freeifaddrs(all);
  return found;
}

/// Rank 0, whose name is "localhost" to itself, and others that have called it at these addresses.
FirstRoster agreed_by(const std::vector<std::uint32_t>& called) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const TcpListener own = listen_on(0, 8, TcpReach::everybody);
  const Socket listening(own.socket);
  JoinedRanks of_first;
  of_first.sockets.emplace_back();
  std::vector<std::thread> others;
  for (std::size_t i = 0; i < called.size(); ++i) {
    JoinedRanks joined;
    joined.sockets.push_back(call_once({called[i], htons(own.port)}, until));
    joined.sockets.resize(called.size() + 1);
    of_first.sockets.emplace_back(accept(listening.get(), nullptr, nullptr));
    others.emplace_back([rank = static_cast<int>(i) + 1, joined = std::move(joined)] {
      agree_on_first({.rank = rank, .token = right_token()}, joined, 1001, kLong);
    });
  }
  FirstRoster agreed = agree_on_first({.rank = 0, .address = "localhost", .token = right_token()},
                                      of_first, 1000, kLong);
  for (std::thread& other : others) other.join();
  return agreed;
}

TEST(FirstRoster, HasTheAddressOfTheFirstThatOthersHaveCalled) {
  const auto outer = outer_host();
  if (!outer) GTEST_SKIP() << "this machine has no address but its own";
  const std::uint32_t inner = htonl(INADDR_LOOPBACK);
  const auto members = agreed_by({inner, *outer}).roster.members;
  ASSERT_EQ(members.size(), 3U);
  EXPECT_EQ(members[0].host, *outer);
  EXPECT_EQ(members[1].host, *outer) << "on the machine of the first";
  EXPECT_EQ(members[2].host, *outer);
}

TEST(FirstRoster, HasItsNameWhereAllAreOnOneMachine) {
  const std::uint32_t inner = htonl(INADDR_LOOPBACK);
  for (const Member& member : agreed_by({inner, inner}).roster.members) {
    EXPECT_EQ(member.host, inner);
  }
}

TEST(FirstRoster, IsNotWaitedForLongerThanRanksMayTakeToMeet) {
  const TcpListener own = listen_on(0, 1, TcpReach::this_machine);
  const Socket listening(own.socket);
  const auto frozen = call_once({htonl(INADDR_LOOPBACK), htons(own.port)},
                                std::chrono::steady_clock::now() + kLong);
  JoinedRanks joined;
  joined.sockets.emplace_back();
  joined.sockets.emplace_back(accept(listening.get(), nullptr, nullptr));
  try {
    agree_on_first({.rank = 0, .address = "localhost", .token = right_token()}, joined, 1000,
                   std::chrono::seconds(1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    EXPECT_EQ(error.message(), "rank 1 has said nothing for 1 s while ranks were joining");
  }
}

}  // namespace
}  // namespace heddle::recover
