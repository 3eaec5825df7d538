#include "recover/membership/note_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>

#include "recover/membership/little_endian.h"

namespace heddle::recover {
namespace {

constexpr std::size_t kMemberBytes = 16;
constexpr std::size_t kFixedBytes = 56 + kMemberBytes;
constexpr std::uint32_t kMostRounds = 1U << 31;  // the next one is still a number

void put_member(std::vector<std::byte>& out, const Member& member) {
  put_number(out, member.id);
  put_number(out, member.host);
  put_number(out, member.port);
  put_number(out, std::uint16_t{0});
}

std::vector<std::byte> body_of(const Note& note) {
  HEDDLE_CHECK(note.members.size() <= kMostMembers && note.hears.size() <= kMostMembers,
               "a note about {} members", std::max(note.members.size(), note.hears.size()));
  std::vector<std::byte> body;
  body.reserve(kFixedBytes + kMemberBytes * note.members.size() + note.hears.size() / 8 + 1);
  put_number(body, static_cast<std::uint8_t>(note.kind));
  put_number(body, std::uint8_t{0});
  put_number(body, static_cast<std::uint16_t>(note.members.size()));
  put_number(body, static_cast<std::uint16_t>(note.hears.size()));
  put_number(body, std::uint16_t{0});
  put_number(body, note.run);
  put_number(body, note.sequence);
  put_number(body, note.epoch);
  for (const Ballot& ballot : {note.ballot, note.taken}) {
    put_number(body, ballot.round);
    put_number(body, ballot.proposer);
  }
  put_number(body, static_cast<std::uint64_t>(note.step));
  put_member(body, note.from);
  for (const Member& member : note.members) put_member(body, member);
  for (std::size_t first = 0; first < note.hears.size(); first += 8) {
    unsigned bits = 0;
    for (std::size_t i = first; i < std::min(first + 8, note.hears.size()); ++i) {
      bits |= static_cast<unsigned>(note.hears[i]) << (i - first);
    }
    body.push_back(static_cast<std::byte>(bits));
  }
  return body;
}

/// Reads a body front to back. What does not fit leaves a reason.
class Body {
 public:
  explicit Body(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <std::unsigned_integral T>
  T number() {
    if (bytes_.size() - at_ < sizeof(T)) {
      note_fault("ends too early");
      return 0;
    }
    const T value = number_at<T>(bytes_, at_);
    at_ += sizeof(T);
    return value;
  }
  template <std::unsigned_integral T>
  void zero() {
    if (number<T>() != 0) note_fault("has something in a place that is not used");
  }
  Member member() {
    Member member{.id = number<std::uint64_t>(),
                  .host = number<std::uint32_t>(),
                  .port = number<std::uint16_t>()};
    zero<std::uint16_t>();
    return member;
  }
  std::vector<bool> bits(std::size_t count) {
    std::vector<bool> bits(count);
    for (std::size_t first = 0; first < count; first += 8) {
      const auto byte = number<std::uint8_t>();
      for (std::size_t i = first; i < std::min(first + 8, count); ++i) {
        bits[i] = ((byte >> (i - first)) & 1U) != 0;
      }
      const std::size_t used = std::min<std::size_t>(8, count - first);
      if ((byte >> used) != 0) note_fault("has something in a place that is not used");
    }
    return bits;
  }
  bool is_at_end() const { return at_ == bytes_.size(); }
  std::size_t left() const { return bytes_.size() - at_; }
  void note_fault(const char* fault) {
    if (fault_ == nullptr) fault_ = fault;
  }
  const char* fault() const { return fault_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  const char* fault_ = nullptr;
};

/// What is wrong with a note that can be read; nothing: it makes sense.
const char* fault_of(const Note& note) {
  if (note.from.id == 0) return "has no sender";
  if (note.step < 0) return "has a step below 0";
  if (std::max(note.ballot, note.taken).round > kMostRounds) return "has a round that none has";
  std::vector<MemberId> ids;
  for (const Member& member : note.members) ids.push_back(member.id);
  std::ranges::sort(ids);
  if (!ids.empty() && ids.front() == 0) return "has a member without a number";
  if (std::ranges::adjacent_find(ids) != ids.end()) return "has a member twice";
  const bool has_roster = note.kind == Note::Kind::prepare || note.kind == Note::Kind::propose ||
                          note.kind == Note::Kind::decided ||
                          (note.kind == Note::Kind::promise && note.taken.round > 0);
  if (has_roster == note.members.empty()) return "has members where it should not, or none";
  const bool says_who_is_heard = note.kind == Note::Kind::alarm ||
                                 note.kind == Note::Kind::prepare ||
                                 note.kind == Note::Kind::promise;
  if (says_who_is_heard == note.hears.empty()) {
    return "says who is heard where it should not, or does not";
  }
  return nullptr;
}

Error refusal(const char* what) {
  return {ErrorCode::peer, fmt::format("a message about members {}", what)};
}

Result<Note> read(std::span<const std::byte> bytes) {
  Body body(bytes);
  Note note;
  const auto kind = body.number<std::uint8_t>();
  note.kind = static_cast<Note::Kind>(kind);
  if (kind == 0 || kind > static_cast<std::uint8_t>(Note::kLastKind)) {
    body.note_fault("is of no known kind");
  }
  body.zero<std::uint8_t>();
  const std::size_t members = body.number<std::uint16_t>();
  const std::size_t bits = body.number<std::uint16_t>();
  body.zero<std::uint16_t>();
  note.run = body.number<std::uint64_t>();
  note.sequence = body.number<std::uint64_t>();
  note.epoch = body.number<std::uint64_t>();
  for (Ballot* ballot : {&note.ballot, &note.taken}) {
    ballot->round = body.number<std::uint32_t>();
    ballot->proposer = body.number<std::uint32_t>();
  }
  note.step = static_cast<std::int64_t>(body.number<std::uint64_t>());
  note.from = body.member();
  if (members > kMostMembers || bits > kMostMembers ||
      body.left() != members * kMemberBytes + (bits + 7) / 8) {
    body.note_fault("does not have the length that it says");
  }
  if (body.fault() == nullptr) {
    for (std::size_t i = 0; i < members; ++i) note.members.push_back(body.member());
    note.hears = body.bits(bits);
  }
  const char* const fault = body.fault() != nullptr ? body.fault() : fault_of(note);
  if (fault != nullptr) return refusal(fault);
  return note;
}

}  // namespace

const SealedKind kNoteKind{.magic = 0x314d6448,
                           .role = "membership",
                           .about = "members",
                           .least = kFixedBytes,
                           .most = kMostNoteBytes};

std::vector<std::byte> seal(const Note& note, const Token& token) {
  return seal_body(kNoteKind, body_of(note), token);
}

Result<Note> open(std::span<const std::byte> message, const Token& token) {
  const auto body = open_body(kNoteKind, message, token);
  if (!body) return body.error();
  return read(*body);
}

}  // namespace heddle::recover
