#include "recover/membership/member_links.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/log.h"
#include "recover/membership/note_wire.h"

namespace heddle::recover {
namespace {

constexpr int kTickMs = 20;
constexpr int kMostNamed = 5;
/// What is taken from one connection before the others have their turn.
constexpr std::size_t kAtOnce = 64 << 10;

}  // namespace

MemberLinks::MemberLinks(Socket listening, const Hello& own, const Token& token, Events events)
    : own_(own),
      token_(token),
      events_(std::move(events)),
      callers_(std::move(listening), own, token) {}

MemberLinks::~MemberLinks() { stop(); }

void MemberLinks::stop() {
  is_stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void MemberLinks::start() {
  thread_ = std::thread([this] { run(); });
}

void MemberLinks::send(const Member& to, const TcpPost::Message& message) {
  const std::lock_guard lock(mutex_);
  auto& post = posts_[{to.host, to.port}];
  if (!post) post = std::make_shared<TcpPost>(SocketAddress{to.host, to.port}, own_, token_);
  post->send(message);
}

void MemberLinks::keep_only(const std::vector<Member>& members) {
  std::vector<std::shared_ptr<TcpPost>> dropped;  // ended without the lock
  const std::lock_guard lock(mutex_);
  for (auto at = posts_.begin(); at != posts_.end();) {
    const bool stays = std::ranges::any_of(members, [&](const Member& member) {
      return Address(member.host, member.port) == at->first;
    });
    if (!stays) dropped.push_back(std::move(at->second));
    at = stays ? std::next(at) : posts_.erase(at);
  }
}

std::vector<std::string> MemberLinks::refusals() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> refusals;
  for (const auto& [address, post] : posts_) {
    if (std::string why = post->refusal(); !why.empty()) refusals.push_back(std::move(why));
  }
  return refusals;
}

Duration MemberLinks::round_trip() const {
  const std::lock_guard lock(mutex_);
  Duration longest{};
  for (const auto& [address, post] : posts_) longest = std::max(longest, post->round_trip());
  return longest;
}

void MemberLinks::flush(std::chrono::steady_clock::time_point until) {
  std::vector<std::shared_ptr<TcpPost>> posts;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, post] : posts_) posts.push_back(post);
  }
  for (const auto& post : posts) post->flush(until);
}

void MemberLinks::run() {
  while (!is_stopping_) {
    wait_for_news();
    take_callers();
    for (Incoming& one : incoming_) read(one);
    std::erase_if(incoming_, [](const Incoming& one) { return !one.is_open; });
    events_.on_tick();
  }
}

void MemberLinks::wait_for_news() {
  std::vector<pollfd> entries;
  callers_.add_to(entries);
  for (const Incoming& one : incoming_) {
    entries.push_back({.fd = one.socket.get(), .events = POLLIN, .revents = 0});
  }
  poll(entries.data(), entries.size(), kTickMs);
}

void MemberLinks::take_callers() {
  for (Callers::Guest& guest : callers_.take()) {
    if (guest.hello.channel == TcpPost::kChannel) {
      incoming_.push_back({.socket = std::move(guest.socket), .address = guest.from});
    } else {
      events_.on_caller(std::move(guest));
    }
  }
}

void MemberLinks::read(Incoming& incoming) {
  std::array<std::byte, 16 << 10> piece;
  std::size_t taken = 0;
  while (taken < kAtOnce) {
    const auto got = recv(incoming.socket.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      incoming.is_open = false;
      break;
    }
    taken += static_cast<std::size_t>(got);
    incoming.bytes.insert(incoming.bytes.end(), piece.begin(), piece.begin() + got);
  }
  const bool is_closed = !incoming.is_open;
  if (taken > 0 && !take_messages(incoming)) return;
  if (is_closed && incoming.from != 0 && !is_still_there(incoming.from)) {
    events_.on_closed(incoming.from);
  }
}

bool MemberLinks::is_still_there(MemberId member) const {
  return std::ranges::any_of(
      incoming_, [&](const Incoming& one) { return one.is_open && one.from == member; });
}

bool MemberLinks::take_messages(Incoming& incoming) {
  std::span<const std::byte> rest = incoming.bytes;
  while (rest.size() >= kFrameBytes) {
    const auto frame = rest.first<kFrameBytes>();
    const auto bytes = sealed_bytes(begins(kStatusKind, frame) ? kStatusKind : kNoteKind, frame);
    if (!bytes) {
      refuse(incoming, bytes.error());
      return false;
    }
    if (rest.size() < *bytes) break;
    if (!take_message(incoming, rest.first(*bytes))) return false;
    rest = rest.subspan(*bytes);
  }
  incoming.bytes.erase(incoming.bytes.begin(),
                       incoming.bytes.end() - static_cast<std::ptrdiff_t>(rest.size()));
  return true;
}

bool MemberLinks::take_message(Incoming& incoming, std::span<const std::byte> message) {
  if (begins(kStatusKind, message.first<kFrameBytes>())) {
    const auto status = open_status(message, token_);
    if (!status) {
      refuse(incoming, status.error());
      return false;
    }
    incoming.from = status->from;
    events_.on_status(*status);
    return true;
  }
  const auto note = open(message, token_);
  if (!note) {
    refuse(incoming, note.error());
    return false;
  }
  incoming.from = note->from.id;
  events_.on_note(*note);
  return true;
}

/// Whoever sent it may call again: a message that is lost is said again by the next one.
void MemberLinks::refuse(Incoming& incoming, const Error& why) {
  incoming.is_open = false;
  if (++refused_ > kMostNamed) return;
  log_warn("{} (from {}): the connection is closed{}", why.message(), incoming.address.host_text(),
           refused_ == kMostNamed ? "; no more of these will be named" : "");
}

}  // namespace heddle::recover
