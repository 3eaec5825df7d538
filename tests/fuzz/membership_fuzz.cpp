// Messages about members: any bytes are refused with an Error(peer), unless they are what `seal`
// makes, byte for byte; and a member stands whatever notes it is given. The first byte chooses
// whether the others are a message, or the bodies of messages from somebody who knows the token,
// each with its length in front.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "recover/membership/membership.h"
#include "recover/membership/note_wire.h"
#include "recover/membership/status.h"

namespace {

using namespace heddle::recover;
using Bytes = std::vector<std::byte>;

const heddle::Token& token() {
  static const heddle::Token token("0123456789abcdef", "the fuzzer");
  return token;
}

/// The message of a body, as somebody who knows the token makes it.
Bytes sealed(std::span<const std::byte> body) {
  const heddle::Proof proof = token().prove("membership", body);
  const auto* const seal = reinterpret_cast<const std::byte*>(proof.data());
  Bytes rest(seal, seal + proof.size());
  rest.insert(rest.end(), body.begin(), body.end());
  const auto sum_of = [](const Bytes& bytes) {
    return heddle::crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  Bytes message;
  const auto put = [&](std::uint32_t value) {
    for (int i = 0; i < 4; ++i) message.push_back(static_cast<std::byte>(value >> (8 * i)));
  };
  put(0x314d6448);
  put(static_cast<std::uint32_t>(body.size()));
  put(sum_of(message));
  put(sum_of(rest));
  message.insert(message.end(), rest.begin(), rest.end());
  return message;
}

void open_anything(std::span<const std::byte> message, Membership* member,
                   Membership::Time now = {}) {
  const auto status = open_status(message, token());
  if (status && !std::ranges::equal(seal(*status, token()), message)) std::abort();
  const auto note = open(message, token());
  if (!note) {
    if (note.error().code() != heddle::ErrorCode::peer) std::abort();
    return;
  }
  if (!std::ranges::equal(seal(*note, token()), message)) std::abort();
  if (member == nullptr) return;
  member->receive(*note, now);
  for (const Membership::Letter& letter : member->take_letters()) {
    if (!open(seal(letter.note, token()), token())) std::abort();
  }
}

void tell_anything(std::span<const std::byte> data) {
  const Limits limits = derive_limits(std::chrono::seconds(10), {});
  const Roster roster{.epoch = 2, .step = 5, .members = {{.id = 1}, {.id = 2}, {.id = 3}}};
  Membership member(7, 1, roster, limits, {});
  Membership::Time now{0};
  while (data.size() > 2) {
    const auto size = std::min<std::size_t>(std::to_integer<std::size_t>(data[0]), data.size() - 2);
    now += std::to_integer<int>(data[1]) * std::chrono::milliseconds(10);
    member.tick(now);
    open_anything(sealed(data.subspan(2, size)), &member, now);
    data = data.subspan(2 + size);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  if ((data[0] & 1) == 0) {
    open_anything(bytes, nullptr);
  } else {
    tell_anything(bytes);
  }
  return 0;
}
