// Who is let in by a token, and who is not. Ranks are threads here, each of which behaves as a
// process would.

#include "comm/tcp/tcp_token.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <future>
#include <optional>

#include "base/error.h"
#include "comm/tcp/tcp_callers.h"
#include "comm/tcp/tcp_join.h"
#include "comm/tcp_listener.h"

namespace heddle {
namespace {

using namespace std::chrono_literals;

const char* const kRight = "the right token, 123";
const char* const kWrong = "another token, 12345";

Token token_of(const char* text) { return text == nullptr ? Token() : Token(text, "the test"); }

std::string_view text_of(const Proof& proof) { return {proof.data(), proof.size()}; }

TEST(Token, ProofsAreHmacSha256) {
  // RFC 4231, test case 6: a key longer than a block.
  const std::string_view data = "Test Using Larger Than Block-Size Key - Hash Key First";
  const Token token(std::string(131, '\xaa'), "the test");
  EXPECT_EQ(text_of(token.prove("", std::as_bytes(std::span(data)))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(text_of(token.prove(data, {})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Token, AcceptsAProofOfTheSameTokenRoleAndContentOnly) {
  const Token right(kRight, "the test"), wrong(kWrong, "the test");
  const Nonce nonce = make_nonce(), other = make_nonce();
  EXPECT_NE(nonce, other);
  const Proof proof = right.prove(kCaller, nonce);
  EXPECT_TRUE(right.accepts(proof, kCaller, nonce));
  EXPECT_FALSE(wrong.accepts(proof, kCaller, nonce));
  EXPECT_FALSE(right.accepts(proof, kCalled, nonce));
  EXPECT_FALSE(right.accepts(proof, kCaller, other));
}

TEST(Token, ThatCanBeGuessedIsRefused) {
  try {
    const Token token("heddle", "HEDDLE_TOKEN");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(error.message().find("HEDDLE_TOKEN has 6 characters"), std::string::npos)
        << error.message();
    EXPECT_EQ(error.message().find("\"heddle\""), std::string::npos);
  }
}

class TokenMeeting {
 public:
  /// What a rank's joining fails of; empty when it joined.
  std::future<std::string> start(int rank, int size, const char* token,
                                 std::chrono::duration<double> limit = 60s) const {
    const TcpPlace place{.rank = rank,
                         .size = size,
                         .port = listener_.port,
                         .listening = rank == 0 ? listener_.socket : -1,
                         .token = token_of(token)};
    return std::async(std::launch::async, [place, limit] {
      try {
        join_ranks(place, {.limit = limit});
        return std::string();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::peer);
        return std::string(error.what());
      }
    });
  }
  Socket call() const {
    return call_once({htonl(INADDR_LOOPBACK), htons(listener_.port)},
                     std::chrono::steady_clock::now() + 10s);
  }

 private:
  TcpListener listener_ = listen_on(0, 8);
};

void expect_says(const std::string& message, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    EXPECT_NE(message.find(text), std::string::npos) << text << "\n" << message;
  }
  EXPECT_EQ(message.find(kRight), std::string::npos) << "shows the token";
  EXPECT_EQ(message.find(kWrong), std::string::npos) << "shows the token";
}

TEST(TokenJoining, RanksWithTheSameTokenMeet) {
  const TokenMeeting meeting;
  std::vector<std::future<std::string>> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(meeting.start(rank, 4, kRight));
  for (auto& rank : ranks) EXPECT_EQ(rank.get(), "");
}

TEST(TokenJoining, AWrongTokenIsNamedAndTheOthersStillMeet) {
  const TokenMeeting meeting;
  ::testing::internal::CaptureStderr();
  auto first = meeting.start(0, 3, kRight), second = meeting.start(1, 3, kRight);
  const std::string refused = meeting.start(2, 3, kWrong).get();
  expect_says(refused, {"rank 0 at 127.0.0.1", "another token than rank 2", "HEDDLE_TOKEN_FILE"});
  auto third = meeting.start(2, 3, kRight);
  EXPECT_EQ(first.get(), "");
  EXPECT_EQ(second.get(), "");
  EXPECT_EQ(third.get(), "");
  expect_says(
      ::testing::internal::GetCapturedStderr(),
      {"rank 2 (process ", "from 127.0.0.1) has another token than rank 0: it is not let in"});
}

TEST(TokenJoining, AMissingTokenIsNamedOnBothSides) {
  const TokenMeeting meeting;
  ::testing::internal::CaptureStderr();
  auto first = meeting.start(0, 2, kRight, 2s);
  expect_says(meeting.start(1, 2, nullptr).get(),
              {"rank 0 at 127.0.0.1", "does not let this rank in",
               "rank 1 was started without a token, rank 0 with one"});
  expect_says(first.get(), {"rank 1 of 2 did not come", "1 caller was sent away"});
  expect_says(::testing::internal::GetCapturedStderr(),
              {"was started without a token, rank 0 with one: it is not let in"});
}

TEST(TokenJoining, ATokenThatRankZeroLacksIsNamedOnBothSides) {
  const TokenMeeting meeting;
  ::testing::internal::CaptureStderr();
  auto first = meeting.start(0, 2, nullptr, 2s);
  expect_says(meeting.start(1, 2, kRight).get(), {"was started without a token, rank 1 with one"});
  expect_says(first.get(), {"rank 1 of 2 did not come"});
  expect_says(::testing::internal::GetCapturedStderr(),
              {"was started with a token, rank 0 without one: it is not let in"});
}

TEST(TokenJoining, StrangersNeitherGetInNorHoldUpTheOthers) {
  const TokenMeeting meeting;
  ::testing::internal::CaptureStderr();
  std::vector<Socket> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(meeting.call());  // silent
  const std::string garbage(5000, 'x');
  const Socket confused = meeting.call();
  write_bytes(confused.get(), garbage.data(), garbage.size());
  // One that knows how to greet, and that sends back the proof that it was sent.
  const Socket mirror = meeting.call();
  Hello hello = own_hello(1, 2, 9);
  hello.has_token = 1;
  ASSERT_TRUE(write_bytes(mirror.get(), &hello, sizeof(hello)));
  const Socket half = meeting.call();  // and one that stops in the middle
  ASSERT_TRUE(write_bytes(half.get(), &hello, sizeof(hello) / 2));
  const auto began = std::chrono::steady_clock::now();
  auto first = meeting.start(0, 2, kRight, 20s);
  Challenge challenge;
  ASSERT_TRUE(read_bytes(mirror.get(), &challenge, sizeof(challenge)));
  ASSERT_TRUE(write_bytes(mirror.get(), challenge.proof.data(), challenge.proof.size()));
  Answer answer;
  ASSERT_TRUE(read_bytes(mirror.get(), &answer, sizeof(answer)));
  EXPECT_EQ(answer.kind, Answer::stranger);
  auto second = meeting.start(1, 2, kRight);
  EXPECT_EQ(first.get(), "");
  EXPECT_EQ(second.get(), "");
  EXPECT_LT(std::chrono::steady_clock::now() - began, 9s);  // silent callers are heard for 10 s
  ::testing::internal::GetCapturedStderr();
}

/// It could keep on sending, and whoever listens to it hears nobody else.
TEST(TokenJoining, AStrangerIsNotListenedToUntilItStopsSending) {
  const TcpListener listener = listen_on(0, 8);
  Callers callers(Socket(listener.socket), own_hello(0, 2, listener.port), token_of(kRight));
  const Socket stranger = call_once({htonl(INADDR_LOOPBACK), htons(listener.port)},
                                    std::chrono::steady_clock::now() + 10s);
  Hello hello = own_hello(1, 2, 9);
  hello.protocol = -2;
  ASSERT_TRUE(write_bytes(stranger.get(), &hello, sizeof(hello)));
  std::vector<char> much(1 << 16);
  while (send(stranger.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) continue;
  ::testing::internal::CaptureStderr();
  while (callers.refused() == 0) callers.take();
  ::testing::internal::GetCapturedStderr();
  ssize_t got = 0;
  while ((got = recv(stranger.get(), much.data(), much.size(), 0)) > 0) continue;
  EXPECT_EQ(got, -1) << "all was read";
}

TEST(TokenJoining, SilentStrangersDoNotKeepARankBusy) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 1200) GTEST_SKIP() << "too few open files are allowed";
  const TcpListener listener = listen_on(0, 8);
  Callers callers(Socket(listener.socket), own_hello(0, 2, listener.port), token_of(kRight));
  std::vector<Socket> strangers;
  for (int i = 0; i < 515; ++i) {  // some more than are listened to at a time
    strangers.push_back(call_once({htonl(INADDR_LOOPBACK), htons(listener.port)},
                                  std::chrono::steady_clock::now() + 10s));
    EXPECT_TRUE(callers.take().empty());
  }
  std::vector<pollfd> entries;
  callers.add_to(entries);
  EXPECT_EQ(poll(entries.data(), entries.size(), 0), 0);
}

TEST(TokenJoining, AnotherVersionIsSentAwayInsteadOfEndingTheRun) {
  const TokenMeeting meeting;
  ::testing::internal::CaptureStderr();
  auto first = meeting.start(0, 2, kRight);
  const Socket caller = meeting.call();
  Hello hello = own_hello(1, 2, 9);
  hello.protocol = -2;
  ASSERT_TRUE(write_bytes(caller.get(), &hello, sizeof(hello)));
  Answer answer;
  ASSERT_TRUE(read_bytes(caller.get(), &answer, sizeof(answer)));
  EXPECT_EQ(answer.kind, Answer::stranger);
  auto second = meeting.start(1, 2, kRight);
  EXPECT_EQ(first.get(), "");
  EXPECT_EQ(second.get(), "");
  expect_says(::testing::internal::GetCapturedStderr(), {"is another version of heddle"});
}

TEST(TokenJoining, ANameThatIsNotTextDoesNotReachTheTerminal) {
  Hello hello = own_hello(1, 2, 9);
  std::snprintf(hello.machine, sizeof(hello.machine), "a\x1b[2Jb\nc");
  EXPECT_EQ(hello.who(), fmt::format("process {} on a?[2Jb?c", hello.process));
}

}  // namespace
}  // namespace heddle
