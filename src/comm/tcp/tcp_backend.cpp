#include "comm/tcp/tcp_backend.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "comm/group_id.h"
#include "comm/tcp/direct_sum.h"
#include "comm/tcp/long_way.h"
#include "comm/threads/combine_ranks.h"

namespace heddle {
namespace {

/// The tag of what is part of a collective; messages have others, from 0 on.
constexpr std::int64_t kFirstCall = -1;

std::size_t row_bytes(const Tensor& rows) {
  return rows.size(0) == 0 ? 0 : rows.size_bytes() / static_cast<std::size_t>(rows.size(0));
}

}  // namespace

TcpBackend::TcpBackend(int rank, std::shared_ptr<const Group> group,
                       std::shared_ptr<TcpSession> session)
    : CommBackend(rank, std::move(group)), session_(std::move(session)) {}

/// A call's number is in the tag: ranks may have several under way, and their messages mix.
TcpLinks::Line TcpBackend::line(std::int64_t sequence, int peer) const {
  return {.group = group()->id, .tag = kFirstCall - sequence, .peer = world_rank(peer)};
}

int TcpBackend::calls_at_once() const {
  const std::vector<int> peers = others();
  return heddle::calls_at_once(std::any_of(peers.begin(), peers.end(), [this](int peer) {
    return session_->links->is_far(world_rank(peer));
  }));
}

class TcpBackend::Messages {
 public:
  Messages(const TcpBackend& backend, std::int64_t sequence)
      : backend_(backend), sequence_(sequence) {}
  ~Messages() {
    for (const auto& one : under_way_) {
      if (one.valid()) one.wait();
    }
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void put(int peer, const std::byte* data, std::size_t bytes) {
    under_way_.push_back(
        backend_.session_->links->send_kept(backend_.line(sequence_, peer), data, bytes));
  }
  void get(int peer, std::byte* data, std::size_t bytes) const {
    backend_.session_->links->recv_now(backend_.line(sequence_, peer), data, bytes);
  }
  /// Until all is on its way and may be written to.
  void wait_for_sends() {
    for (auto& one : under_way_) one.get();
    under_way_.clear();
  }

 private:
  const TcpBackend& backend_;
  const std::int64_t sequence_;
  std::vector<std::future<void>> under_way_;
};

void TcpBackend::run(const Collective& call) {
  session_->failure->check();
  switch (call.op) {
    case CommOp::barrier: return barrier(call);
    case CommOp::all_reduce: return all_reduce(call);
    case CommOp::all_gather: return all_gather(call);
    case CommOp::reduce_scatter: return reduce_scatter(call);
    case CommOp::all_to_all: return all_to_all(call);
    case CommOp::broadcast: return broadcast(call);
    default: HEDDLE_CHECK(false, "{} is not a collective on tensors", name_of(call.op));
  }
}

/// Others than this rank, each rank in another order: where messages leave one after another, no
/// rank is sent to by two at a time.
std::vector<int> TcpBackend::others() const {
  std::vector<int> ranks;
  for (int ahead = 1; ahead < size(); ++ahead) ranks.push_back((rank() + ahead) % size());
  return ranks;
}

/// `own` and as much that every other rank sends here, in the order of ranks.
void TcpBackend::combine_with_others(const Collective& call, Messages& messages, std::byte* own,
                                     std::byte* out, std::int64_t count) const {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(call.in.dtype());
  std::vector<std::vector<std::byte>> arrived(static_cast<std::size_t>(size()));
  std::vector<std::byte*> inputs;
  for (int peer = 0; peer < size(); ++peer) {
    auto& other = arrived[static_cast<std::size_t>(peer)];
    if (peer != rank()) {
      other.resize(bytes);
      messages.get(peer, other.data(), bytes);
    }
    inputs.push_back(peer == rank() ? own : other.data());
  }
  messages.wait_for_sends();  // what was sent may be where the result goes
  combine_ranks(call.in.dtype(), call.reduce, inputs, {&out, 1}, 0, count);
}

void TcpBackend::barrier(const Collective& call) {
  Messages messages(*this, call.sequence);
  for (const int peer : others()) messages.put(peer, nullptr, 0);
  for (const int peer : others()) messages.get(peer, nullptr, 0);
}

/// Every rank combines, in the order of ranks: everything, or a part, which it then sends to the
/// others.
void TcpBackend::all_reduce(const Collective& call) {
  Messages messages(*this, call.sequence);
  std::byte* const data = call.out.bytes();
  const std::int64_t count = call.out.count();
  const std::size_t each = size_of(call.out.dtype());
  if (sums_in_one_way(size(), static_cast<double>(call.out.size_bytes()))) {
    for (const int peer : others()) messages.put(peer, data, call.out.size_bytes());
    return combine_with_others(call, messages, data, data, count);
  }
  struct Part {
    std::byte* data;
    std::int64_t count;
    std::size_t bytes;
  };
  const auto part = [&](int of) -> Part {
    const std::int64_t begin = count * of / size(), end = count * (of + 1) / size();
    return {data + static_cast<std::size_t>(begin) * each, end - begin,
            static_cast<std::size_t>(end - begin) * each};
  };
  for (const int peer : others()) messages.put(peer, part(peer).data, part(peer).bytes);
  const Part own = part(rank());
  combine_with_others(call, messages, own.data, own.data, own.count);
  for (const int peer : others()) messages.put(peer, own.data, own.bytes);
  for (const int peer : others()) messages.get(peer, part(peer).data, part(peer).bytes);
  messages.wait_for_sends();
}

void TcpBackend::all_gather(const Collective& call) {
  const std::size_t bytes = call.in.size_bytes();
  const auto slice = [&](int of) {
    return call.out.bytes() + static_cast<std::size_t>(of) * bytes;
  };
  Messages messages(*this, call.sequence);
  for (const int peer : others()) messages.put(peer, call.in.bytes(), bytes);
  for (const int peer : others()) messages.get(peer, slice(peer), bytes);
  messages.wait_for_sends();
  if (slice(rank()) != call.in.bytes() && bytes > 0) {
    std::memcpy(slice(rank()), call.in.bytes(), bytes);
  }
}

void TcpBackend::reduce_scatter(const Collective& call) {
  const std::size_t bytes = call.out.size_bytes();
  const auto slice = [&](int of) { return call.in.bytes() + static_cast<std::size_t>(of) * bytes; };
  Messages messages(*this, call.sequence);
  for (const int peer : others()) messages.put(peer, slice(peer), bytes);
  combine_with_others(call, messages, slice(rank()), call.out.bytes(), call.out.count());
}

void TcpBackend::broadcast(const Collective& call) {
  Messages messages(*this, call.sequence);
  if (rank() != call.root) return messages.get(call.root, call.out.bytes(), call.out.size_bytes());
  for (const int peer : others()) messages.put(peer, call.in.bytes(), call.in.size_bytes());
  messages.wait_for_sends();
}

void TcpBackend::all_to_all(const Collective& call) {
  const std::size_t row = std::max(row_bytes(call.in), row_bytes(call.out));
  struct Stretch {
    std::size_t at, bytes;
  };
  const auto stretches = [row](const std::vector<std::int64_t>& rows) {
    std::vector<Stretch> by_rank;
    std::size_t at = 0;
    for (const std::int64_t count : rows) {
      by_rank.push_back({at, static_cast<std::size_t>(count) * row});
      at += by_rank.back().bytes;
    }
    return by_rank;
  };
  const auto sent = stretches(call.send_rows), received = stretches(call.recv_rows);
  Messages messages(*this, call.sequence);
  for (const int peer : others()) {
    const auto [at, bytes] = sent[static_cast<std::size_t>(peer)];
    if (bytes > 0) messages.put(peer, call.in.bytes() + at, bytes);
  }
  for (const int peer : others()) {
    const auto [at, bytes] = received[static_cast<std::size_t>(peer)];
    if (bytes > 0) messages.get(peer, call.out.bytes() + at, bytes);
  }
  messages.wait_for_sends();
  const auto own = static_cast<std::size_t>(rank());
  if (sent[own].bytes == 0) return;
  std::memcpy(call.out.bytes() + received[own].at, call.in.bytes() + sent[own].at, sent[own].bytes);
}

void TcpBackend::send(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) {
  session_->links->send(
      {.group = group()->id, .tag = tag, .peer = world_rank(peer)}, data.bytes(), data.size_bytes(),
      [data, done = std::move(done)](const std::exception_ptr& problem) { done->finish(problem); });
}

void TcpBackend::recv(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) {
  session_->failure->check();
  session_->links->recv(
      {.group = group()->id, .tag = tag, .peer = world_rank(peer)}, data.bytes(), data.size_bytes(),
      [data, done = std::move(done)](const std::exception_ptr& problem) { done->finish(problem); });
}

std::shared_ptr<CommBackend> TcpBackend::split(int color, int key, std::int64_t sequence) {
  struct Wish {
    int color, key;
  };
  std::vector<Wish> wishes(static_cast<std::size_t>(size()));
  wishes[static_cast<std::size_t>(rank())] = {color, key};
  const auto wish_of = [&](int peer) {
    return reinterpret_cast<std::byte*>(&wishes[static_cast<std::size_t>(peer)]);
  };
  {
    Messages messages(*this, sequence);
    for (const int peer : others()) messages.put(peer, wish_of(rank()), sizeof(Wish));
    for (const int peer : others()) messages.get(peer, wish_of(peer), sizeof(Wish));
    messages.wait_for_sends();
  }
  if (color < 0) return nullptr;
  std::vector<int> members;
  for (int peer = 0; peer < size(); ++peer) {
    if (wishes[static_cast<std::size_t>(peer)].color == color) members.push_back(peer);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return wishes[static_cast<std::size_t>(a)].key < wishes[static_cast<std::size_t>(b)].key;
  });
  auto part = std::make_shared<Group>();
  part->id = group_id_of_part(group()->id, sequence, color);
  for (const int member : members) part->ranks.push_back(world_rank(member));
  const auto own = std::find(members.begin(), members.end(), rank()) - members.begin();
  return std::make_shared<TcpBackend>(static_cast<int>(own), std::move(part), session_);
}

void TcpBackend::abort(std::string_view why) noexcept {
  session_->stop_world("rank " + std::to_string(world_rank(rank())) +
                       " stopped: " + std::string(why));
}

}  // namespace heddle
