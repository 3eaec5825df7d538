#include "recover/membership/note_wire.h"

#include <gtest/gtest.h>

#include "recover/simulated_network.h"

namespace heddle::recover {
namespace {

Note a_promise() {
  return {.kind = Note::Kind::promise,
          .run = 0x1122334455667788,
          .from = {.id = 42, .host = 0x0100007f, .port = 4711},
          .sequence = 9,
          .epoch = 3,
          .ballot = {5, 1},
          .taken = {4, 2},
          .step = 120,
          .members = {{.id = 42, .host = 1, .port = 2}, {.id = 43, .host = 3, .port = 4}},
          .hears = {true, false, true, true, false, true, true, true, true}};
}

std::string refusal_of(std::span<const std::byte> message, const Token& token = right_token()) {
  const auto note = open(message, token);
  return note ? "" : note.error().message();
}

TEST(NoteWire, WhatIsSealedIsOpened) {
  for (auto kind : {Note::Kind::heartbeat, Note::Kind::refusal, Note::Kind::accepted,
                    Note::Kind::join}) {
    Note note{.kind = kind, .run = 1, .from = {.id = 7}, .sequence = 1, .epoch = 2};
    EXPECT_EQ(*open(seal(note, right_token()), right_token()), note);
  }
  for (auto kind : {Note::Kind::prepare, Note::Kind::propose, Note::Kind::decided}) {
    Note note{.kind = kind, .run = 1, .from = {.id = 7}, .members = {{.id = 7}, {.id = 8}}};
    if (kind == Note::Kind::prepare) note.hears = {true, false};
    EXPECT_EQ(*open(seal(note, right_token()), right_token()), note);
  }
  const Note alarm{.kind = Note::Kind::alarm, .run = 1, .from = {.id = 7}, .hears = {true, false}};
  EXPECT_EQ(*open(seal(alarm, right_token()), right_token()), alarm);
  const auto message = seal(a_promise(), right_token());
  EXPECT_EQ(*open(message, right_token()), a_promise());
  EXPECT_EQ(*sealed_bytes(kNoteKind, std::span(message).first<kFrameBytes>()), message.size());
}

TEST(NoteWire, EveryFlippedBitIsNoticed) {
  const auto message = seal(a_promise(), right_token());
  for (std::size_t bit = 0; bit < 8 * message.size(); ++bit) {
    auto damaged = message;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_NE(refusal_of(damaged), "") << bit;
  }
  auto damaged = message;
  damaged.back() ^= std::byte{1};
  EXPECT_EQ(refusal_of(damaged), "a message about members was damaged on its way");
}

/// Of what comes over a connection nobody knows where it ends but by its frame.
TEST(NoteWire, AFrameWithAFlippedBitIsNotWaitedFor) {
  constexpr std::size_t kSumOfTheRestAt = 12;
  const auto message = seal(a_promise(), right_token());
  for (std::size_t bit = 0; bit < 8 * kSumOfTheRestAt; ++bit) {
    auto damaged = message;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(sealed_bytes(kNoteKind, std::span(damaged).first<kFrameBytes>())) << bit;
  }
}

TEST(NoteWire, EveryOtherLengthIsRefused) {
  const auto message = seal(a_promise(), right_token());
  for (std::size_t size = 0; size < message.size(); ++size) {
    EXPECT_NE(refusal_of(std::span(message).first(size)), "") << size;
  }
  auto longer = message;
  longer.push_back(std::byte{0});
  EXPECT_EQ(refusal_of(longer), "a message about members does not have the length that it says");
}

TEST(NoteWire, AStrangerIsNamedAsOne) {
  const auto message = seal(a_promise(), wrong_token());
  EXPECT_EQ(refusal_of(message), "a message about members is from somebody with another token");
  EXPECT_EQ(refusal_of(message, wrong_token()), "");
}

/// Who knows the token and sends nonsense.
TEST(NoteWire, NotesThatMakeNoSenseAreRefused) {
  const auto refused = [](auto change) {
    Note note = a_promise();
    change(note);
    return refusal_of(seal(note, right_token()));
  };
  const std::string a = "a message about members ";
  EXPECT_EQ(refused([](Note& n) { n.kind = static_cast<Note::Kind>(0); }),
            a + "is of no known kind");
  EXPECT_EQ(refused([](Note& n) { n.kind = static_cast<Note::Kind>(10); }),
            a + "is of no known kind");
  EXPECT_EQ(refused([](Note& n) { n.from.id = 0; }), a + "has no sender");
  EXPECT_EQ(refused([](Note& n) { n.step = -1; }), a + "has a step below 0");
  EXPECT_EQ(refused([](Note& n) { n.ballot.round = 0xffffffff; }), a + "has a round that none has");
  EXPECT_EQ(refused([](Note& n) { n.members[1].id = 42; }), a + "has a member twice");
  EXPECT_EQ(refused([](Note& n) { n.members[1].id = 0; }), a + "has a member without a number");
  EXPECT_EQ(refused([](Note& n) { n.members.clear(); }),
            a + "has members where it should not, or none");
  EXPECT_EQ(refused([](Note& n) { n.hears.clear(); }),
            a + "says who is heard where it should not, or does not");
  EXPECT_EQ(refused([](Note& n) { n.kind = Note::Kind::heartbeat; }),
            a + "has members where it should not, or none");
}

}  // namespace
}  // namespace heddle::recover
