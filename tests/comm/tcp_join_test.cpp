// What ranks say while they look for each other, and when they do not find each other. Ranks are
// threads here, each of which behaves as a process would.

#include "comm/tcp/tcp_join.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>
#include <optional>
#include <thread>

#include "base/error.h"
#include "comm/stopped_by_peer.h"
#include "comm/tcp/tcp_greeting.h"
#include "comm/tcp_listener.h"

namespace heddle {
namespace {

using namespace std::chrono_literals;

struct Joined {
  std::optional<ErrorCode> code = {};  ///< absent: it joined
  std::vector<int> ranks = {};         ///< with these
  std::string message = {}, told = {};
  bool is_stopped_by_peer = false;
};

/// What came of one rank's joining, in time.
Joined join(const TcpPlace& place, std::chrono::duration<double> limit) {
  Joined joined;
  try {
    const auto ranks = join_ranks(
        place, {.limit = limit, .tell = [&](const std::string& text) { joined.told += text; }});
    EXPECT_EQ(ranks.sockets.size(), ranks.ranks.size());
    if (place.again.number == 0) {
      EXPECT_EQ(ranks.sockets.size(), static_cast<std::size_t>(place.size));
    }
    joined.ranks = ranks.ranks;
  } catch (const Error& error) {
    joined.code = error.code();
    joined.message = error.message();
    joined.is_stopped_by_peer = dynamic_cast<const StoppedByPeer*>(&error) != nullptr;
  }
  return joined;
}

class Meeting {
 public:
  TcpPlace place(int rank, int size) const {
    return {.rank = rank,
            .size = size,
            .port = listener_.port,
            .listening = rank == 0 ? listener_.socket : -1};
  }
  std::future<Joined> start(int rank, int size, std::chrono::duration<double> limit = 60s) const {
    return std::async(std::launch::async, join, place(rank, size), limit);
  }
  Socket call() const {
    return call_once({htonl(INADDR_LOOPBACK), htons(listener_.port)},
                     std::chrono::steady_clock::now() + 10s);
  }

 private:
  TcpListener listener_ = listen_on(0, 8);
};

void expect_told_by_first(Joined first, const std::vector<Joined>& others,
                          const std::string& text) {
  EXPECT_EQ(first.code, ErrorCode::peer);
  EXPECT_NE(first.told.find(text), std::string::npos) << first.told;
  EXPECT_FALSE(first.is_stopped_by_peer);
  for (const Joined& other : others) {
    EXPECT_EQ(other.code, ErrorCode::peer);
    EXPECT_TRUE(other.is_stopped_by_peer) << other.message;
    EXPECT_NE(other.message.find(text), std::string::npos) << other.message;
    EXPECT_EQ(other.told, "");
  }
}

TEST(Joining, EndsAtTheLimitAndEveryRankNamesThoseThatAreMissing) {
  const Meeting meeting;
  const auto began = std::chrono::steady_clock::now();
  auto first = meeting.start(0, 6, 2s), other = meeting.start(3, 6, 2s);
  expect_told_by_first(first.get(), {other.get()}, "ranks 1, 2, 4 and 5 of 6 did not come");
  EXPECT_GE(std::chrono::steady_clock::now() - began, 2s);
}

TEST(Joining, NamesTheAddressOfARankZeroThatIsNotThere) {
  TcpListener nobody = listen_on(0, 1);
  { const Socket closed(nobody.socket); }
  const Joined alone = join({.rank = 1, .size = 2, .port = nobody.port}, 0.3s);
  EXPECT_EQ(alone.code, ErrorCode::peer);
  EXPECT_NE(alone.message.find(fmt::format("rank 0 at 127.0.0.1 port {}", nobody.port)),
            std::string::npos)
      << alone.message;
}

TEST(Joining, WaitsForEverWhereThereIsNoLimit) {
  const Meeting meeting;
  auto first = meeting.start(0, 3, 0s), second = meeting.start(1, 3, 0s);
  EXPECT_EQ(first.wait_for(1s), std::future_status::timeout);
  auto third = meeting.start(2, 3, 0s);
  EXPECT_EQ(first.get().message, "");
  EXPECT_EQ(second.get().message, "");
  EXPECT_EQ(third.get().message, "");
}

TEST(Joining, ARankThatWentAwayMayComeAgain) {
  const Meeting meeting;
  auto first = meeting.start(0, 3);
  {
    const Socket short_lived = meeting.call();
    const Hello hello = own_hello(2, 3, 9);
    ASSERT_TRUE(write_bytes(short_lived.get(), &hello, sizeof(hello)));
    EXPECT_EQ(first.wait_for(300ms), std::future_status::timeout);
  }
  auto second = meeting.start(1, 3), third = meeting.start(2, 3);
  EXPECT_EQ(first.get().message, "");
  EXPECT_EQ(second.get().message, "");
  EXPECT_EQ(third.get().message, "");
}

TEST(Joining, ARankThatDiesAfterAllHaveComeIsNamed) {
  const Meeting meeting;
  auto first = meeting.start(0, 3), second = meeting.start(1, 3);
  {
    const Socket dying = meeting.call();
    const Hello hello = own_hello(2, 3, 9);
    ASSERT_TRUE(write_bytes(dying.get(), &hello, sizeof(hello)));
    Answer answer;
    ASSERT_TRUE(read_bytes(dying.get(), &answer, sizeof(answer)));
    EXPECT_EQ(answer.kind, Answer::table);
  }
  expect_told_by_first(first.get(), {second.get()}, "rank 2 (process ");
}

TEST(Joining, NamesTwoProcessesOfOneRank) {
  const Meeting meeting;
  auto first = meeting.start(0, 4), one = meeting.start(2, 4), other = meeting.start(2, 4);
  const Joined told = first.get();
  const std::string who = own_hello(2, 4, 0).who();
  expect_told_by_first(told, {one.get(), other.get()},
                       fmt::format("two processes say that they are rank 2: {} and {}", who, who));
}

TEST(Joining, NamesASecondRankZero) {
  const Meeting meeting;
  auto first = meeting.start(0, 2);
  const Socket caller = meeting.call();
  const Hello hello = own_hello(0, 2, 9);
  ASSERT_TRUE(write_bytes(caller.get(), &hello, sizeof(hello)));
  expect_told_by_first(first.get(), {}, "two processes say that they are rank 0");
}

TEST(Joining, NamesARankThatWasStartedWithAnotherSize) {
  const Meeting meeting;
  auto first = meeting.start(0, 4), other = meeting.start(5, 8);
  const Joined told = first.get();
  expect_told_by_first(told, {other.get()}, "rank 5 (process ");
  EXPECT_NE(told.message.find("as one of 8 ranks, rank 0 (process "), std::string::npos)
      << told.message;
  EXPECT_NE(told.message.find("as one of 4"), std::string::npos) << told.message;
}

TEST(Joining, RefusesARankOutOfRange) {
  const Meeting meeting;
  auto first = meeting.start(0, 2);
  const Socket caller = meeting.call();
  const Hello hello = own_hello(7, 2, 9);
  ASSERT_TRUE(write_bytes(caller.get(), &hello, sizeof(hello)));
  expect_told_by_first(first.get(), {}, "says that it is rank 7 of 2");
}

TEST(Joining, RefusesAnotherVersionByName) {
  const Meeting meeting;
  auto first = meeting.start(0, 2);
  const Socket caller = meeting.call();
  // The greeting of the first version: magic, rank, address, port.
  const struct {
    std::uint64_t magic = Hello::kMagic;
    std::int32_t rank = 1;
    std::uint32_t address = 0, port = 9, hole = 0;
  } hello;
  ASSERT_TRUE(write_bytes(caller.get(), &hello, sizeof(hello)));
  expect_told_by_first(first.get(), {}, "another version of heddle");
}

/// Six ranks, two of which go on together, that meet again.
std::future<Joined> start_again(const Meeting& meeting, int rank, std::vector<int> lost,
                                std::chrono::duration<double> limit = 60s, int number = 1) {
  TcpPlace place = meeting.place(rank, 6);
  place.again = {.number = number, .together = 2, .lost = std::move(lost)};
  return std::async(std::launch::async, join, place, limit);
}

TEST(MeetingAgain, TakesWholeGroupsAndWaitsForNobodyThatIsLost) {
  const Meeting meeting;
  auto early = start_again(meeting, 3, {2}), first = start_again(meeting, 0, {2});
  std::this_thread::sleep_for(300ms);  // rank 3 has come by then, without its other half
  auto second = start_again(meeting, 1, {2}), fifth = start_again(meeting, 4, {2}),
       sixth = start_again(meeting, 5, {2});
  for (auto* one : {&first, &second, &fifth, &sixth}) {
    const Joined joined = one->get();
    EXPECT_EQ(joined.ranks, (std::vector<int>{0, 1, 4, 5})) << joined.message;
  }
  const Joined left = early.get();
  EXPECT_EQ(left.code, ErrorCode::peer);
  EXPECT_NE(left.message.find("the others go on without it"), std::string::npos) << left.message;
}

TEST(MeetingAgain, WaitsForOthersUntilTheLimit) {
  const Meeting meeting;
  auto first = start_again(meeting, 0, {2}, 2s), second = start_again(meeting, 1, {2}, 2s);
  EXPECT_EQ(first.get().ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(second.get().ranks, (std::vector<int>{0, 1}));
}

TEST(MeetingAgain, IsNotWithoutTheFirstGroup) {
  const Meeting meeting;
  auto first = start_again(meeting, 0, {4}, 2s), third = start_again(meeting, 2, {4}, 2s),
       fourth = start_again(meeting, 3, {4}, 2s);
  expect_told_by_first(first.get(), {third.get(), fourth.get()},
                       "without which rank 0 cannot go on");
}

TEST(MeetingAgain, SendsAwayWhoComesFromAnotherMeeting) {
  const Meeting meeting;
  auto first = start_again(meeting, 0, {2, 4}, 60s, 2);
  const Joined late = start_again(meeting, 4, {2}, 60s, 1).get();
  EXPECT_EQ(late.code, ErrorCode::peer);
  EXPECT_NE(late.message.find("the others go on without them"), std::string::npos) << late.message;
  const Joined newcomer = meeting.start(4, 6).get();
  EXPECT_NE(newcomer.message.find("a restart of all ranks"), std::string::npos) << newcomer.message;
  auto second = start_again(meeting, 1, {2, 4}, 60s, 2);
  EXPECT_EQ(first.get().ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(second.get().ranks, (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace heddle
