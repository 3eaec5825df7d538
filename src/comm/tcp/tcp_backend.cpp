#include "comm/tcp/tcp_backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "comm/group_id.h"
#include "comm/threads/combine_ranks.h"

namespace heddle {
namespace {

constexpr std::int64_t kCollective = -1;  // the tag of what is part of one; messages have others

std::size_t row_bytes(const Tensor& rows) {
  return rows.size(0) == 0 ? 0 : rows.size_bytes() / static_cast<std::size_t>(rows.size(0));
}

}  // namespace

TcpBackend::TcpBackend(int rank, std::shared_ptr<const Group> group,
                       std::shared_ptr<TcpSession> session)
    : CommBackend(rank, std::move(group)), session_(std::move(session)) {}

void TcpBackend::put(int peer, const std::byte* data, std::size_t bytes) {
  session_->links->send_now({.group = group()->id, .tag = kCollective, .peer = world_rank(peer)},
                            data, bytes);
}

void TcpBackend::get(int peer, std::byte* data, std::size_t bytes) {
  session_->links->recv_now({.group = group()->id, .tag = kCollective, .peer = world_rank(peer)},
                            data, bytes);
}

void TcpBackend::run(const Collective& call) {
  session_->failure->check();
  switch (call.op) {
    case CommOp::all_reduce:
    case CommOp::barrier: return all_reduce(call);
    case CommOp::all_gather: return all_gather(call);
    case CommOp::reduce_scatter: return reduce_scatter(call);
    case CommOp::all_to_all: return all_to_all(call);
    case CommOp::broadcast: return broadcast(call);
    default: HEDDLE_CHECK(false, "{} is not a collective on tensors", name_of(call.op));
  }
}

/// The first rank combines and tells the others; a barrier is the same of nothing.
void TcpBackend::all_reduce(const Collective& call) {
  const std::size_t bytes = call.out.defined() ? call.out.size_bytes() : 0;
  std::byte* const data = bytes > 0 ? call.out.bytes() : nullptr;
  if (rank() > 0) {
    put(0, data, bytes);
    return get(0, data, bytes);
  }
  std::vector<std::vector<std::byte>> others(static_cast<std::size_t>(size()) - 1);
  std::vector<std::byte*> inputs = {data};
  for (int peer = 1; peer < size(); ++peer) {
    auto& other = others[static_cast<std::size_t>(peer) - 1];
    other.resize(bytes);
    get(peer, other.data(), bytes);
    inputs.push_back(other.data());
  }
  if (bytes > 0) {
    combine_ranks(call.out.dtype(), call.reduce, inputs, {inputs.data(), 1}, 0, call.out.count());
  }
  for (int peer = 1; peer < size(); ++peer) put(peer, data, bytes);
}

void TcpBackend::all_gather(const Collective& call) {
  const std::size_t bytes = call.in.size_bytes();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) put(peer, call.in.bytes(), bytes);
  }
  for (int peer = 0; peer < size(); ++peer) {
    std::byte* const slice = call.out.bytes() + static_cast<std::size_t>(peer) * bytes;
    if (peer != rank()) {
      get(peer, slice, bytes);
    } else if (slice != call.in.bytes() && bytes > 0) {
      std::memcpy(slice, call.in.bytes(), bytes);
    }
  }
}

void TcpBackend::reduce_scatter(const Collective& call) {
  const std::size_t bytes = call.out.size_bytes();
  const auto slice = [&](int of) { return call.in.bytes() + static_cast<std::size_t>(of) * bytes; };
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) put(peer, slice(peer), bytes);
  }
  std::vector<std::vector<std::byte>> others(static_cast<std::size_t>(size()));
  std::vector<std::byte*> inputs;
  for (int peer = 0; peer < size(); ++peer) {
    auto& other = others[static_cast<std::size_t>(peer)];
    if (peer != rank()) {
      other.resize(bytes);
      get(peer, other.data(), bytes);
    }
    inputs.push_back(peer == rank() ? slice(peer) : other.data());
  }
  std::byte* const out = call.out.bytes();
  combine_ranks(call.in.dtype(), call.reduce, inputs, {&out, 1}, 0, call.out.count());
}

void TcpBackend::broadcast(const Collective& call) {
  if (rank() != call.root) return get(call.root, call.out.bytes(), call.out.size_bytes());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) put(peer, call.in.bytes(), call.in.size_bytes());
  }
}

void TcpBackend::all_to_all(const Collective& call) {
  const std::size_t row = std::max(row_bytes(call.in), row_bytes(call.out));
  const auto bytes = [row](std::int64_t rows) { return static_cast<std::size_t>(rows) * row; };
  const std::byte* from = call.in.bytes();
  const std::byte* own = nullptr;
  for (int peer = 0; peer < size(); ++peer) {
    const std::size_t count = bytes(call.send_rows[static_cast<std::size_t>(peer)]);
    if (peer == rank()) {
      own = from;
    } else {
      put(peer, from, count);
    }
    from += count;
  }
  std::byte* to = call.out.bytes();
  for (int peer = 0; peer < size(); ++peer) {
    const std::size_t count = bytes(call.recv_rows[static_cast<std::size_t>(peer)]);
    if (peer != rank()) {
      get(peer, to, count);
    } else if (count > 0) {
      std::memcpy(to, own, count);
    }
    to += count;
  }
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
  for (int peer = 0; peer < size(); ++peer) {
    const auto* const own = &wishes[static_cast<std::size_t>(rank())];
    if (peer != rank()) put(peer, reinterpret_cast<const std::byte*>(own), sizeof(Wish));
  }
  for (int peer = 0; peer < size(); ++peer) {
    auto* const other = &wishes[static_cast<std::size_t>(peer)];
    if (peer != rank()) get(peer, reinterpret_cast<std::byte*>(other), sizeof(Wish));
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
