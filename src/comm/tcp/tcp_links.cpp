#include "comm/tcp/tcp_links.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/error.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kTimeToJudge{3};
/// For a rank to say that the world has failed, which closes its connections.
constexpr std::chrono::milliseconds kTimeToSay{1000};
/// What a connection takes beyond what it has sent: with more, messages to several ranks would
/// leave at the same time and all of them late.
constexpr int kUnsentBytes = 128 << 10;
constexpr std::uint64_t kMagic = 0x31656c6464654811ULL;
/// Of a header whose bytes come over the stripes.
constexpr std::uint64_t kStripedMagic = 0x31656c6464654812ULL;
/// Smaller messages go whole over the first connection.
constexpr std::size_t kLeastStriped = 64 << 10;
constexpr std::size_t kMostAtOnce = 1 << 20;
/// A message more than so many times as long lets one pass.
constexpr std::uint64_t kMuchLonger = 4;
constexpr std::uint64_t kOwnGroup = ~std::uint64_t{0};  // of the links themselves

/// Something to wait for, and what ends it: it lives until both are done with it.
std::pair<std::future<void>, TcpLinks::Done> awaitable() {
  auto promise = std::make_shared<std::promise<void>>();
  auto future = promise->get_future();
  return {std::move(future), [promise = std::move(promise)](std::exception_ptr problem) {
            problem ? promise->set_exception(std::move(problem)) : promise->set_value();
          }};
}

std::uint32_t sum_of(const void* data, std::size_t bytes) {
  return crc32c({static_cast<const char*>(data), bytes});
}

/// The problem, where sizes differ.
std::exception_ptr copy_arrived(const std::vector<std::byte>& message, int from, std::byte* data,
                                std::size_t bytes) {
  if (message.size() != bytes) {
    return std::make_exception_ptr(Error(
        ErrorCode::peer,
        fmt::format("rank {} sends {} bytes where {} are expected", from, message.size(), bytes)));
  }
  if (bytes > 0) std::memcpy(data, message.data(), bytes);
  return nullptr;
}

}  // namespace

/// What a world wakes when it fails. It does not keep the links: their own threads tell of failures
/// too, and one that had the last hold of them would wait for its own end.
class TcpLinks::Waker : public Wakeable {
 public:
  explicit Waker(TcpLinks& links) : links_(&links) {}
  void wake_all() noexcept override {
    const std::lock_guard lock(mutex_);
    if (links_ != nullptr) links_->wake_all();
  }
  /// Returns when nobody is at it any more.
  void forget() {
    const std::lock_guard lock(mutex_);
    links_ = nullptr;
  }

 private:
  std::mutex mutex_;
  TcpLinks* links_;
};

TcpLinks::TcpLinks(int rank, std::vector<TcpLink> links, std::shared_ptr<WorldFailure> failure,
                   TcpCare care)
    : rank_(rank),
      failure_(std::move(failure)),
      care_(std::move(care)),
      waker_(std::make_shared<Waker>(*this)),
      is_closed_(links.size(), false) {
  for (TcpLink& given : links) {
    HEDDLE_CHECK(!care_.checks || given.stripes.empty(), "stripes of messages with checksums");
    links_.push_back(std::make_unique<Link>());
    links_.back()->socket = std::move(given.socket);
    if (given.is_far) links_.back()->sending = std::make_unique<Sending>();
    if (!given.stripes.empty()) {
      links_.back()->stripes = std::make_unique<TcpStripes>(std::move(given.stripes));
    }
  }
  for (int other = 0; other < size(); ++other) {
    if (other == rank_) continue;
    Link& to = link(other);
    const int on = 1;
    setsockopt(to.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(to.socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes,
               sizeof(kUnsentBytes));
    if (to.stripes) to.piece_reader = std::thread([this, other] { read_pieces(other); });
    to.reader = std::thread([this, other] { read_all(other); });
  }
  failure_->watch(waker_);
}

TcpLinks::~TcpLinks() {
  waker_->forget();
  for (Sending* const sending : all_sending()) {
    {
      const std::lock_guard lock(sending->mutex);
      is_closing_ = true;
    }
    sending->changed.notify_all();
  }
  for (const auto& link : links_) {
    if (link->socket) shut(*link);
  }
  for (const auto& link : links_) {
    if (link->reader.joinable()) link->reader.join();
  }
  for (Sending* const sending : all_sending()) {
    if (sending->writer.joinable()) sending->writer.join();
  }
}

std::vector<TcpLinks::Sending*> TcpLinks::all_sending() {
  std::vector<Sending*> all = {&near_};
  for (const auto& link : links_) {
    if (link->sending) all.push_back(link->sending.get());
  }
  return all;
}

void TcpLinks::shut(Link& link) const {
  shutdown(link.socket.get(), SHUT_RDWR);
  if (link.stripes) link.stripes->shut();
}

TcpLinks::Header TcpLinks::header_for(const Line& line, const std::byte* data,
                                      std::size_t bytes) const {
  Header header{.magic = is_striped(line.peer, bytes) ? kStripedMagic : kMagic,
                .group = line.group,
                .tag = line.tag,
                .bytes = bytes};
  if (!care_.checks) return header;
  header.payload_sum = sum_of(data, bytes);
  header.own_sum = sum_of(&header, offsetof(Header, own_sum));
  return header;
}

bool TcpLinks::is_whole(const Header& header) const {
  return !care_.checks || header.own_sum == sum_of(&header, offsetof(Header, own_sum));
}

bool TcpLinks::is_whole(const Incoming& message) const {
  return !care_.checks || message.sum == sum_of(message.place.data, message.place.bytes);
}

void TcpLinks::send(const Line& line, const std::byte* data, std::size_t bytes, Done done) {
  put_in_line({.to = line.peer,
               .header = header_for(line, data, bytes),
               .data = data,
               .done = std::move(done)});
}

std::future<void> TcpLinks::send_kept(const Line& line, const std::byte* data, std::size_t bytes) {
  auto [sent, done] = awaitable();
  put_in_line({.to = line.peer,
               .header = header_for(line, data, bytes),
               .data = data,
               .done = std::move(done),
               .is_waited_for = true});
  return std::move(sent);
}

bool TcpLinks::is_striped(int to, std::size_t bytes) const {
  return links_[static_cast<std::size_t>(to)]->stripes != nullptr && bytes >= kLeastStriped;
}

/// What the connection takes at once goes without a change of thread; of what is long that would
/// keep the caller from computing for longer than the change takes.
void TcpLinks::put_in_line(Outgoing message) {
  Sending& sending = sending_to(message.to);
  std::unique_lock lock(sending.mutex);
  failure_->check();  // under the lock: whoever is in line when the world fails is told
  if (message.header.magic != kStripedMagic && message.header.bytes <= kMostAtOnce &&
      sending.outgoing.empty()) {
    const auto put = write_some(link(message.to).socket.get(), &message.header, sizeof(Header),
                                message.data, message.header.bytes);
    message.written = put < 0 ? 0 : static_cast<std::size_t>(put);
    if (message.written == sizeof(Header) + message.header.bytes) {
      lock.unlock();
      return message.done(nullptr);
    }
  }
  insert(sending.outgoing, std::move(message));
  if (!sending.writer.joinable()) {
    sending.writer = std::thread([this, &sending] { write_all(sending); });
  }
  sending.changed.notify_one();
}

void TcpLinks::insert(std::list<Outgoing>& line, Outgoing message) {
  const auto may_pass = [&](const Outgoing& waiting) {
    const bool is_same_line = waiting.to == message.to &&
                              waiting.header.group == message.header.group &&
                              waiting.header.tag == message.header.tag;
    return !is_same_line && waiting.header.bytes > kMuchLonger * message.header.bytes;
  };
  auto at = line.end();
  while (at != line.begin() && std::prev(at) != line.begin() && may_pass(*std::prev(at))) --at;
  line.insert(at, std::move(message));
}

bool TcpLinks::write_message(const Outgoing& message) {
  Link& to = link(message.to);
  const int socket = to.socket.get();
  const std::size_t of_header = std::min(message.written, sizeof(Header));
  if (!write_bytes(socket, reinterpret_cast<const std::byte*>(&message.header) + of_header,
                   sizeof(Header) - of_header)) {
    return false;
  }
  if (message.header.magic == kStripedMagic) {
    if (to.stripes->write(to.striped_out++, message.data, message.header.bytes)) return true;
    shut(to);  // one connection of several is gone: the rank is
    return false;
  }
  return write_bytes(socket, message.data + (message.written - of_header),
                     message.header.bytes - (message.written - of_header));
}

void TcpLinks::write_all(Sending& sending) {
  for (std::unique_lock lock(sending.mutex);;) {
    sending.changed.wait(lock, [&] { return is_closing_ || !sending.outgoing.empty(); });
    if (sending.outgoing.empty()) return;
    const Outgoing& message = sending.outgoing.front();  // its place stays while others come
    lock.unlock();
    const bool is_sent = write_message(message);
    const auto problem = is_sent ? nullptr : reason_of_silence(message.to);
    lock.lock();
    const Outgoing ended = std::move(sending.outgoing.front());
    sending.outgoing.pop_front();
    lock.unlock();
    if (!ended.is_told) ended.done(problem);
    lock.lock();
  }
}

void TcpLinks::wait_for_failure(std::chrono::milliseconds longest) const {
  const auto until = Clock::now() + longest;
  while (!failure_->has_failed() && !is_closing_ && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::exception_ptr TcpLinks::reason_of_silence(int from) const {
  wait_for_failure(kTimeToJudge);
  return problem_of(from);
}

std::exception_ptr TcpLinks::problem_of(int from) const {
  if (failure_->has_failed()) return failure_->error();
  return std::make_exception_ptr(Error(ErrorCode::peer, fmt::format("rank {} is gone", from)));
}

void TcpLinks::recv(const Line& line, std::byte* data, std::size_t bytes, Done done) {
  std::exception_ptr problem;
  {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[line];
    if (queue.awaited.empty() && !queue.arrived.empty() && queue.arrived.front()->is_complete) {
      const auto message = std::move(queue.arrived.front());
      queue.arrived.pop_front();
      forget_if_empty(line);
      problem = copy_arrived(message->bytes, line.peer, data, bytes);
    } else if (failure_->has_failed() || is_closed_[static_cast<std::size_t>(line.peer)]) {
      problem = problem_of(line.peer);
      forget_if_empty(line);
    } else {
      queue.awaited.push_back({data, bytes, std::move(done)});
      return;
    }
  }
  done(problem);
}

void TcpLinks::recv_now(const Line& line, std::byte* data, std::size_t bytes) {
  auto [arrived, done] = awaitable();
  recv(line, data, bytes, std::move(done));
  arrived.get();
}

std::string TcpLinks::from_first(std::string text) {
  std::array<std::byte, 4096> page{};
  if (rank_ == 0) {
    if (text.size() >= page.size()) fail(ErrorCode::internal, "a text of {} bytes", text.size());
    std::memcpy(page.data(), text.data(), text.size());
    for (int other = 1; other < size(); ++other) {
      send_now({.group = kOwnGroup, .tag = 0, .peer = other}, page.data(), page.size());
    }
    return text;
  }
  recv_now({.group = kOwnGroup, .tag = 0, .peer = 0}, page.data(), page.size());
  return reinterpret_cast<const char*>(page.data());
}

TcpLinks::Incoming TcpLinks::begin_message(const Line& line, const Header& header) {
  const std::size_t bytes = header.bytes;
  Incoming message{.line = line, .place = {}, .own = {}, .left = bytes, .sum = header.payload_sum};
  const std::lock_guard lock(mutex_);
  Queue& queue = queues_[line];
  if (queue.arrived.empty() && !queue.awaited.empty() && queue.awaited.front().bytes == bytes) {
    message.place = std::move(queue.awaited.front());
    queue.awaited.pop_front();
    forget_if_empty(line);
    return message;
  }
  message.own = std::make_shared<Arrived>();
  message.own->bytes.resize(bytes);
  message.place.data = message.own->bytes.data();
  message.place.bytes = bytes;
  queue.arrived.push_back(message.own);
  return message;
}

void TcpLinks::end_message(Incoming& message) {
  if (message.place.done) return message.place.done(nullptr);
  std::vector<std::pair<Done, std::exception_ptr>> ended;
  {
    const std::lock_guard lock(mutex_);
    message.own->is_complete = true;
    match(message.line, ended);
  }
  for (const auto& [done, problem] : ended) done(problem);
}

/// Every collective has lines of its own, so that they would add up.
void TcpLinks::forget_if_empty(const Line& line) {
  const auto found = queues_.find(line);
  if (found->second.awaited.empty() && found->second.arrived.empty()) queues_.erase(found);
}

/// A receive may have been posted meanwhile.
void TcpLinks::match(const Line& line, std::vector<std::pair<Done, std::exception_ptr>>& ended) {
  Queue& queue = queues_[line];
  while (!queue.awaited.empty() && !queue.arrived.empty() && queue.arrived.front()->is_complete) {
    Awaited next = std::move(queue.awaited.front());
    queue.awaited.pop_front();
    const auto message = std::move(queue.arrived.front());
    queue.arrived.pop_front();
    auto problem = copy_arrived(message->bytes, line.peer, next.data, next.bytes);
    ended.emplace_back(std::move(next.done), std::move(problem));
  }
  forget_if_empty(line);
}

TcpLinks::Incoming TcpLinks::read_messages(int from) {
  Link& link = this->link(from);
  const int socket = link.socket.get();
  Header header;
  while (read_bytes(socket, &header, sizeof(header))) {
    const bool is_striped = header.magic == kStripedMagic && link.stripes;
    if (!is_whole(header) || (header.magic != kMagic && !is_striped)) {
      const std::lock_guard lock(mutex_);
      link.has_damage = true;
      return {};
    }
    const Line line{.group = header.group, .tag = header.tag, .peer = from};
    if (is_striped) {
      announce_striped(from, line, header);
      continue;
    }
    Incoming message = begin_message(line, header);
    if (!read_bytes(socket, message.place.data, header.bytes)) return message;
    if (!is_whole(message)) {
      const std::lock_guard lock(mutex_);
      link.has_damage = true;
      return message;
    }
    end_message(message);
  }
  return {};
}

void TcpLinks::tell_lost(int from) {
  if (!care_.on_lost) return;
  bool has_damage = false;
  {
    const std::lock_guard lock(mutex_);
    has_damage = link(from).has_damage;
  }
  if (!has_damage) wait_for_failure(kTimeToSay);
  if (failure_->has_failed() || is_closing_) return;
  care_.on_lost(from, has_damage
                          ? fmt::format("what came from rank {} was damaged on its way", from)
                          : fmt::format("the connection to rank {} is closed", from));
}

void TcpLinks::read_all(int from) {
  Link& link = this->link(from);
  const Incoming unfinished = read_messages(from);
  shut(link);
  tell_lost(from);
  const std::exception_ptr why = reason_of_silence(from);
  if (unfinished.place.done) unfinished.place.done(why);
  if (link.stripes) {
    link.piece_reader.join();  // nobody writes to where messages are awaited any more
    for (auto& [number, message] : link.incoming) {
      if (message.place.done) message.place.done(why);
    }
  }
  give_up(from, why);
}

void TcpLinks::announce_striped(int from, const Line& line, const Header& header) {
  Incoming message = begin_message(line, header);
  Link& link = this->link(from);
  {
    const std::lock_guard lock(mutex_);
    link.incoming.emplace(link.striped_in++, std::move(message));
  }
  link.stripes->announce();
}

void TcpLinks::read_pieces(int from) {
  Link& link = this->link(from);
  link.stripes->read(
      [&](std::uint64_t number) -> TcpStripes::Place {
        const std::lock_guard lock(mutex_);
        const auto found = link.incoming.find(number);
        if (found == link.incoming.end()) return {};
        return {found->second.place.data, found->second.place.bytes};
      },
      [&](std::uint64_t number, std::size_t bytes) {
        std::map<std::uint64_t, Incoming>::node_type whole;
        {
          const std::lock_guard lock(mutex_);
          const auto found = link.incoming.find(number);
          found->second.left -= bytes;
          if (found->second.left == 0) whole = link.incoming.extract(found);
        }
        if (whole) end_message(whole.mapped());
      });
  shut(link);  // one connection of several is gone: the rank is
}

void TcpLinks::give_up(int from, const std::exception_ptr& why) {
  std::vector<Done> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (from >= 0) is_closed_[static_cast<std::size_t>(from)] = true;
    for (auto& [line, queue] : queues_) {
      if (from >= 0 && line.peer != from) continue;
      for (Awaited& place : queue.awaited) waiting.push_back(std::move(place.done));
      queue.awaited.clear();
    }
  }
  for (Sending* const sending : all_sending()) {
    const std::lock_guard lock(sending->mutex);
    for (Outgoing& message : sending->outgoing) {
      if (from >= 0 && message.to != from) continue;
      if (message.is_waited_for || std::exchange(message.is_told, true)) continue;
      waiting.push_back(message.done);  // a copy: the bytes may still be read
    }
  }
  for (const Done& done : waiting) done(why);
}

void TcpLinks::wake_all() noexcept {
  give_up(-1, failure_->error());
  if (!care_.on_lost) return;
  for (const auto& link : links_) {
    if (link->socket) shut(*link);
  }
}

}  // namespace heddle
