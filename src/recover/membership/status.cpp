#include "recover/membership/status.h"

#include <algorithm>

#include "recover/membership/little_endian.h"

namespace heddle::recover {
namespace {

constexpr std::size_t kFixed = 36;
constexpr std::size_t kMostCause = 4096;
constexpr std::size_t kMostReport = std::size_t{1} << 20;
constexpr unsigned kStepping = 1, kEndHere = 2, kEndEverywhere = 4;

unsigned flags_of(const Status& status) {
  const unsigned end = status.end == Status::End::none   ? 0
                       : status.end == Status::End::here ? kEndHere
                                                         : kEndEverywhere;
  return end | (status.is_stepping ? kStepping : 0);
}

std::string text_at(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

const SealedKind kStatusKind{.magic = 0x31536448,
                             .role = "status",
                             .about = "a member",
                             .least = kFixed,
                             .most = kFixed + kMostCause + kMostReport};

std::vector<std::byte> seal(const Status& status, const Token& token) {
  const std::size_t cause = std::min(status.cause.size(), kMostCause);
  std::vector<std::byte> body;
  body.reserve(kFixed + cause + status.report.size());
  put_number(body, status.run);
  put_number(body, status.from);
  put_number(body, status.sequence);
  put_number(body, status.epoch);
  put_number(body, static_cast<std::uint8_t>(flags_of(status)));
  put_number(body, std::uint8_t{0});
  put_number(body, static_cast<std::uint16_t>(cause));
  const auto append = [&](const std::string& text, std::size_t size) {
    const auto* const at = reinterpret_cast<const std::byte*>(text.data());
    body.insert(body.end(), at, at + size);
  };
  append(status.cause, cause);
  // One so long that it is of no use to anybody is left out.
  if (status.report.size() <= kMostReport) append(status.report, status.report.size());
  return seal_body(kStatusKind, body, token);
}

Result<Status> open_status(std::span<const std::byte> message, const Token& token) {
  const auto opened = open_body(kStatusKind, message, token);
  if (!opened) return opened.error();
  const std::span<const std::byte> body = *opened;
  const unsigned flags = number_at<std::uint8_t>(body, 32);
  const std::size_t cause = number_at<std::uint16_t>(body, 34);
  const unsigned end = flags & ~kStepping;
  if ((end != 0 && end != kEndHere && end != kEndEverywhere) ||
      number_at<std::uint8_t>(body, 33) != 0 || cause > kMostCause ||
      cause > body.size() - kFixed) {
    return Error(ErrorCode::peer, "a message about a member makes no sense");
  }
  return Status{.run = number_at<std::uint64_t>(body, 0),
                .from = number_at<std::uint64_t>(body, 8),
                .sequence = number_at<std::uint64_t>(body, 16),
                .epoch = number_at<std::uint64_t>(body, 24),
                .is_stepping = (flags & kStepping) != 0,
                .end = end == 0          ? Status::End::none
                       : end == kEndHere ? Status::End::here
                                         : Status::End::everywhere,
                .cause = text_at(body.subspan(kFixed, cause)),
                .report = text_at(body.subspan(kFixed + cause))};
}

}  // namespace heddle::recover
