#include "comm/threads/thread_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "base/error.h"
#include "comm/group_id.h"
#include "comm/threads/combine_ranks.h"

namespace heddle {
namespace {

/// How long the ranks that have not come yet may take to vote on who is wrong.
constexpr std::chrono::milliseconds kVoteTime{500};
/// How often a thread looks before it goes to sleep: a few microseconds, where waking up takes some
/// tens. It does not yield meanwhile: on a busy machine that gives away a whole time slice.
constexpr int kLooks = 100;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// What must be equal on all ranks of a call.
auto signature(const Collective& call) {
  std::int64_t count = 0;
  DType dtype = DType::f32;
  if (call.in.defined()) {
    dtype = call.in.dtype();
    // Ranks may have different numbers of rows, but not rows of different widths.
    count = call.op == CommOp::all_to_all
                ? call.in.count() / std::max<std::int64_t>(1, call.in.size(0))
                : call.in.count();
  }
  return std::tuple(call.sequence, call.op, call.reduce, call.root, dtype, count);
}

bool agree(const Collective& a, const Collective& b) {
  const auto empty = [](const Collective& c) { return c.in.defined() && c.in.count() == 0; };
  if (a.op == CommOp::all_to_all && b.op == a.op && (empty(a) || empty(b))) {
    return a.sequence == b.sequence && a.in.dtype() == b.in.dtype();
  }
  return signature(a) == signature(b);
}

std::string text(const Collective& call) {
  std::string text = fmt::format("{} #{}", name_of(call.op), call.sequence);
  if (call.in.defined()) {
    text += fmt::format(" of {} {}", name_of(call.in.dtype()), call.in.shape().text());
  }
  if (call.reduce == ReduceOp::max) text += " with max";
  return text;
}

}  // namespace

ThreadGroup::ThreadGroup(std::shared_ptr<WorldFailure> failure, std::shared_ptr<const Group> group)
    : failure_(std::move(failure)), group_(std::move(group)), places_(group_->ranks.size()) {}

void ThreadGroup::wake_all() noexcept {
  std::vector<std::shared_ptr<WorkState>> pending;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, line] : lines_) {
      for (auto* messages : {&line.sent, &line.awaited}) {
        for (Message& message : *messages) pending.push_back(std::move(message.done));
      }
    }
    lines_.clear();
  }
  changed_.notify_all();
  for (const auto& work : pending) {
    work->finish(std::make_exception_ptr(Error(ErrorCode::peer, failure_->reason())));
  }
}

void ThreadGroup::meet(std::unique_lock<std::mutex> lock, const std::function<void()>& at_last) {
  const std::uint64_t meeting = meetings_.load(std::memory_order_relaxed);
  if (++arrived_ == size()) {
    if (is_disputed_) settle_dispute(lock);
    if (at_last) at_last();
    arrived_ = 0;
    meetings_.store(meeting + 1, std::memory_order_release);
    lock.unlock();
    changed_.notify_all();
    return;
  }
  lock.unlock();
  for (int i = 0; i < kLooks; ++i) {
    if (meetings_.load(std::memory_order_acquire) != meeting) return;
    pause_briefly();
  }
  lock.lock();
  while (meetings_.load(std::memory_order_relaxed) == meeting) {
    failure_->check();
    if (!is_disputed_) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, vote_ends_) == std::cv_status::timeout) {
      settle_dispute(lock);
    }
  }
}

void ThreadGroup::settle_dispute(std::unique_lock<std::mutex>& lock) {
  const std::string verdict = dispute();
  lock.unlock();
  failure_->fail(verdict);
  failure_->check();
}

std::string ThreadGroup::dispute() const {
  // The call that most ranks make is taken for the right one.
  const auto votes = [&](const Place& place) {
    return std::count_if(places_.begin(), places_.end(), [&](const Place& other) {
      return other.is_taken && agree(other.call, place.call);
    });
  };
  const auto by_votes = [&](const Place& a, const Place& b) {
    return (a.is_taken ? votes(a) : 0) < (b.is_taken ? votes(b) : 0);
  };
  const Place& usual = *std::max_element(places_.begin(), places_.end(), by_votes);
  std::string text_of_odd;
  std::string usual_ranks;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (!place.is_taken) continue;
    if (agree(place.call, usual.call)) {
      usual_ranks += fmt::format("{}{}", usual_ranks.empty() ? "" : ", ", group_->ranks[i]);
    } else {
      text_of_odd += fmt::format("{}rank {} is in {}", text_of_odd.empty() ? "" : ", ",
                                 group_->ranks[i], text(place.call));
    }
  }
  return fmt::format("ranks make different calls in one group: {} while rank{} {} {} in {}",
                     text_of_odd, votes(usual) > 1 ? "s" : "", usual_ranks,
                     votes(usual) > 1 ? "are" : "is", text(usual.call));
}

void ThreadGroup::arrive(int rank, const Collective& call, int color, int key) {
  std::unique_lock lock(mutex_);
  failure_->check();
  Place& own = places_[static_cast<std::size_t>(rank)];
  own.call = call;
  own.color = color;
  own.key = key;
  own.is_taken = true;
  const bool differs = std::any_of(places_.begin(), places_.end(), [&](const Place& other) {
    return other.is_taken && !agree(other.call, call);
  });
  if (differs && !is_disputed_) {
    is_disputed_ = true;
    vote_ends_ = std::chrono::steady_clock::now() + kVoteTime;
    changed_.notify_all();
  }
  meet(std::move(lock));
}

void ThreadGroup::leave() {
  // The last to leave clears the places. When the world fails meanwhile nobody does, so that the
  // tensors of a rank that unwinds stay alive for another that still reads them.
  meet(std::unique_lock(mutex_), [this] {
    for (Place& place : places_) place = {};
  });
}

void ThreadGroup::run(int rank, const Collective& call) {
  arrive(rank, call);
  switch (call.op) {
    case CommOp::all_reduce:
    case CommOp::reduce_scatter: reduce(rank, call); break;
    case CommOp::all_gather: gather(call); break;
    case CommOp::all_to_all: exchange_rows(rank, call); break;
    case CommOp::broadcast: take_from(rank, call); break;
    case CommOp::barrier: break;
    default: HEDDLE_CHECK(false, "{} is not a collective on tensors", name_of(call.op));
  }
  leave();
}

void ThreadGroup::reduce(int rank, const Collective& call) {
  std::vector<std::byte*> inputs, outputs;
  std::int64_t begin = 0, end = call.out.count();
  if (call.op == CommOp::all_reduce) {
    // Each rank combines one slice and writes it to all; slices are whole cache lines.
    constexpr std::int64_t kLine = 64;
    const std::int64_t slice = (end / size() + kLine) / kLine * kLine;
    begin = std::min(end, slice * rank);
    end = std::min(end, begin + slice);
    for (const Place& place : places_) inputs.push_back(place.call.in.bytes());
    outputs = inputs;
  } else {
    const std::size_t offset = call.out.size_bytes() * static_cast<std::size_t>(rank);
    for (const Place& place : places_) inputs.push_back(place.call.in.bytes() + offset);
    outputs = {call.out.bytes()};
  }
  combine_ranks(call.in.dtype(), call.reduce, inputs, outputs, begin, end);
}

void ThreadGroup::gather(const Collective& call) {
  std::byte* slice = call.out.bytes();
  const std::size_t bytes = call.in.size_bytes();
  for (const Place& place : places_) {
    const std::byte* const shard = place.call.in.bytes();
    if (shard != slice) std::memcpy(slice, shard, bytes);
    slice += bytes;
  }
}

void ThreadGroup::take_from(int rank, const Collective& call) {
  if (rank == call.root || call.out.count() == 0) return;
  const Tensor& source = places_[static_cast<std::size_t>(call.root)].call.in;
  std::memcpy(call.out.bytes(), source.bytes(), call.out.size_bytes());
}

void ThreadGroup::exchange_rows(int rank, const Collective& call) {
  if (call.out.count() == 0) return;
  const std::size_t row_bytes = call.out.size_bytes() / static_cast<std::size_t>(call.out.size(0));
  const auto own = static_cast<std::size_t>(rank);
  std::byte* to = call.out.bytes();
  for (std::size_t q = 0; q < places_.size(); ++q) {
    const auto& rows = places_[q].call.send_rows;
    HEDDLE_CHECK(rows[own] == call.recv_rows[q],
                 "all_to_all: rank {} expects {} rows from rank {}, which sends {}",
                 group_->ranks[own], call.recv_rows[q], group_->ranks[q], rows[own]);
    const auto before = std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
    const std::size_t bytes = static_cast<std::size_t>(rows[own]) * row_bytes;
    std::memcpy(to, places_[q].call.in.bytes() + static_cast<std::size_t>(before) * row_bytes,
                bytes);
    to += bytes;
  }
}

ThreadGroup::Part ThreadGroup::split(int rank, int color, int key, std::int64_t sequence) {
  arrive(rank, {.op = CommOp::split, .sequence = sequence}, color, key);
  std::vector<int> members;
  for (int q = 0; q < size(); ++q) {
    if (places_[static_cast<std::size_t>(q)].color == color) members.push_back(q);
  }
  const auto key_of = [this](int q) { return places_[static_cast<std::size_t>(q)].key; };
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return key_of(a) < key_of(b); });
  Place& first = places_[static_cast<std::size_t>(members.front())];
  if (color >= 0 && members.front() == rank) {
    auto group = std::make_shared<Group>();
    for (const int q : members) group->ranks.push_back(group_->ranks[static_cast<std::size_t>(q)]);
    group->id = group_id_of_part(group_->id, sequence, color);
    first.part = std::make_shared<ThreadGroup>(failure_, std::move(group));
    failure_->watch(first.part);
  }
  meet(std::unique_lock(mutex_));
  Part part{
      .group = color < 0 ? nullptr : first.part,
      .rank = static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin())};
  leave();
  return part;
}

void ThreadGroup::send(int from, int to, int tag, const Tensor& data,
                       std::shared_ptr<WorkState> done) {
  Message place;
  {
    const std::lock_guard lock(mutex_);
    failure_->check();
    Line& line = lines_[{from, to, tag}];
    if (line.awaited.empty()) {
      line.sent.push_back({data, std::move(done)});
      return;
    }
    place = std::move(line.awaited.front());
    line.awaited.pop_front();
  }
  transfer(from, to, {data, std::move(done)}, std::move(place));
}

void ThreadGroup::recv(int from, int to, int tag, const Tensor& data,
                       std::shared_ptr<WorkState> done) {
  Message message;
  {
    const std::lock_guard lock(mutex_);
    failure_->check();
    Line& line = lines_[{from, to, tag}];
    if (line.sent.empty()) {
      line.awaited.push_back({data, std::move(done)});
      return;
    }
    message = std::move(line.sent.front());
    line.sent.pop_front();
  }
  transfer(from, to, std::move(message), {data, std::move(done)});
}

void ThreadGroup::transfer(int from, int to, Message message, Message place) {
  const Tensor &sent = message.data, &awaited = place.data;
  if (sent.dtype() != awaited.dtype() || sent.count() != awaited.count()) {
    failure_->fail(fmt::format("rank {} sends {} {} to rank {}, which expects {} {}",
                               group_->ranks[static_cast<std::size_t>(from)], name_of(sent.dtype()),
                               sent.shape().text(), group_->ranks[static_cast<std::size_t>(to)],
                               name_of(awaited.dtype()), awaited.shape().text()));
    const auto error = std::make_exception_ptr(Error(ErrorCode::peer, failure_->reason()));
    message.done->finish(error);
    place.done->finish(error);
    return;
  }
  if (sent.count() > 0) std::memcpy(awaited.bytes(), sent.bytes(), sent.size_bytes());
  message.data = place.data = {};  // who waits may count on the tensors being released
  message.done->finish();
  place.done->finish();
}

}  // namespace heddle
