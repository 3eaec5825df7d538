#include "comm/communicator.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "comm/comm_threads.h"
#include "comm/world_failure.h"
#include "tensor/memory.h"

namespace heddle {
namespace {

void require_contiguous(const Tensor& tensor) {
  HEDDLE_CHECK(tensor.is_contiguous(), "communication of a strided tensor {}",
               tensor.shape().text());
}

/// When the stream's work so far is done, where a GPU's stream is concerned.
Event ready_event(const Tensor& data, Stream& after) {
  return is_on_gpu(data) ? after.record() : Event();
}

std::int64_t sum(std::span<const std::int64_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

}  // namespace

CommCounts& CommCounts::operator+=(const CommCounts& other) {
  for (std::size_t op = 0; op < by_op.size(); ++op) {
    const Entry& more = other.by_op[op];
    by_op[op].add(more.calls, more.payload_bytes, more.wire_bytes);
  }
  return *this;
}

Communicator::Communicator(std::shared_ptr<CommBackend> backend,
                           std::shared_ptr<FlightRecorder> flight, std::string name)
    : backend_(std::move(backend)),
      flight_(std::move(flight)),
      name_(std::move(name)),
      exceptions_at_start_(std::uncaught_exceptions()) {}

Communicator::~Communicator() {
  if (threads_ && std::uncaught_exceptions() > exceptions_at_start_) threads_->leave_alone();
}

void Communicator::count(CommOp op, const Tensor& moved, std::int64_t stands_for) {
  const std::int64_t wire = moved.defined() ? static_cast<std::int64_t>(moved.size_bytes()) : 0;
  counts_.by_op[static_cast<std::size_t>(op)].add(1, stands_for > 0 ? stands_for : wire, wire);
}

CommCall Communicator::describe(CommOp op, const Tensor& payload) const {
  CommCall call{.group_name = name_, .group = backend_->group(), .op = op};
  if (payload.defined()) {
    call.dtype = payload.dtype();
    call.shape = payload.shape();
    call.bytes = static_cast<std::int64_t>(payload.size_bytes());
  }
  return call;
}

Work Communicator::all_reduce(const Tensor& inout, ReduceOp op, Stream& after) {
  require_contiguous(inout);
  return collective({.op = CommOp::all_reduce, .reduce = op, .in = inout, .out = inout}, inout,
                    after);
}

Work Communicator::all_gather(const Tensor& shard, const Tensor& whole, Stream& after,
                              std::int64_t stands_for) {
  HEDDLE_CHECK(shard.count() * size() == whole.count() && shard.dtype() == whole.dtype(),
               "all_gather of {} into {} over {} ranks", shard.shape().text(), whole.shape().text(),
               size());
  require_contiguous(shard);
  require_contiguous(whole);
  return collective({.op = CommOp::all_gather, .in = shard, .out = whole}, whole, after,
                    stands_for);
}

Work Communicator::reduce_scatter(const Tensor& whole, const Tensor& shard, ReduceOp op,
                                  Stream& after) {
  HEDDLE_CHECK(shard.count() * size() == whole.count() && shard.dtype() == whole.dtype(),
               "reduce_scatter of {} into {} over {} ranks", whole.shape().text(),
               shard.shape().text(), size());
  require_contiguous(shard);
  require_contiguous(whole);
  return collective({.op = CommOp::reduce_scatter, .reduce = op, .in = whole, .out = shard}, whole,
                    after);
}

Work Communicator::all_to_all(const Tensor& send, const Tensor& recv,
                              std::span<const std::int64_t> send_rows,
                              std::span<const std::int64_t> recv_rows, Stream& after,
                              std::int64_t stands_for) {
  const auto ranks = static_cast<std::size_t>(size()), own = static_cast<std::size_t>(rank());
  HEDDLE_CHECK(send_rows.size() == ranks && recv_rows.size() == ranks,
               "all_to_all row counts for {} and {} ranks in a group of {}", send_rows.size(),
               recv_rows.size(), ranks);
  HEDDLE_CHECK(sum(send_rows) == send.size(0) && sum(recv_rows) == recv.size(0) &&
                   send_rows[own] == recv_rows[own],
               "all_to_all row counts do not add up to {} and {}", send.size(0), recv.size(0));
  Shape row = send.shape();
  row.set(0, recv.size(0));
  HEDDLE_CHECK(row == recv.shape() && send.dtype() == recv.dtype(), "all_to_all of {} into {}",
               send.shape().text(), recv.shape().text());
  require_contiguous(send);
  require_contiguous(recv);
  return collective({.op = CommOp::all_to_all,
                     .in = send,
                     .out = recv,
                     .send_rows = {send_rows.begin(), send_rows.end()},
                     .recv_rows = {recv_rows.begin(), recv_rows.end()}},
                    send, after, stands_for);
}

Work Communicator::broadcast(const Tensor& data, int root, Stream& after) {
  HEDDLE_CHECK(root >= 0 && root < size(), "broadcast from rank {} of {}", root, size());
  require_contiguous(data);
  return collective({.op = CommOp::broadcast, .in = data, .out = data, .root = root}, data, after);
}

Work Communicator::collective(Collective call, const Tensor& payload, Stream& after,
                              std::int64_t stands_for) {
  count(call.op, payload, stands_for);
  if (after.is_dry()) return {};
  CommCall record = describe(call.op, payload);
  record.sequence = sequence_ + 1;
  if (!flight_->admits(record)) return {};
  call.sequence = ++sequence_;
  call.ready = ready_event(payload, after);
  return start(std::move(call), flight_->add(std::move(record)), after);
}

void Communicator::push(std::function<void()> task, bool follows) {
  if (!threads_) threads_ = std::make_unique<CommThreads>(backend_->calls_at_once());
  threads_->push(std::move(task), follows);
}

void Communicator::then(std::function<void(Stream&)> work, Stream& after) {
  using Background = CommBackend::Background;
  const bool is_for_gpu = after.device().kind == Device::Kind::cuda;
  if (after.is_dry() || !is_in_background(is_for_gpu)) return work(after);
  if (backend_->background(is_for_gpu) == Background::own_stream) return work(backend_->stream());
  push(
      [backend = backend_, work = std::move(work)] {
        Stream stream(1);
        try {
          work(stream);
        } catch (const std::exception& error) {
          backend->abort(error.what());
        }
      },
      true);
  next_follows_ = true;
}

Work Communicator::start(Collective call, std::int64_t number, Stream& after) {
  auto state = std::make_shared<WorkState>(flight_, number);
  const bool is_for_gpu = is_on_gpu(call.in);
  auto task = [backend = backend_, flight = flight_, state, number,
               call = std::move(call)]() mutable {
    flight->start(number);
    std::exception_ptr failure;
    try {
      backend->start(call, *state);
    } catch (...) {
      failure = std::current_exception();
    }
    call = {};  // who waits may count on the tensors being released
    state->finish(failure);
  };
  if (is_in_background(is_for_gpu)) {
    if (backend_->background(is_for_gpu) == CommBackend::Background::thread) {
      push(std::move(task), std::exchange(next_follows_, false));
    } else {
      task();
    }
    return Work(std::move(state));
  }
  flight_->begin_wait();
  flight_->wait(number);
  task();
  state->wait(after);
  flight_->end_wait();
  return {};
}

Work Communicator::send(const Tensor& data, int peer, Stream& after, int tag,
                        std::int64_t stands_for) {
  HEDDLE_CHECK(peer >= 0 && peer < size() && peer != rank(), "send from {} to {}", rank(), peer);
  return message(CommOp::send, data, peer, tag, after, stands_for);
}

Work Communicator::recv(const Tensor& data, int peer, Stream& after, int tag,
                        std::int64_t stands_for) {
  HEDDLE_CHECK(peer >= 0 && peer < size() && peer != rank(), "recv at {} from {}", rank(), peer);
  return message(CommOp::recv, data, peer, tag, after, stands_for);
}

Work Communicator::message(CommOp op, const Tensor& data, int peer, int tag, Stream& after,
                           std::int64_t stands_for) {
  require_contiguous(data);
  count(op, data, stands_for);
  if (after.is_dry()) return {};
  CommCall record = describe(op, data);
  record.peer = peer;
  record.message_tag = tag;
  std::int64_t& sequence = messages_[{op, peer, tag}];
  record.sequence = sequence + 1;
  if (!flight_->admits(record)) return {};
  ++sequence;
  const std::int64_t number = flight_->add(std::move(record));
  flight_->start(number);
  auto state = std::make_shared<WorkState>(flight_, number);
  try {
    backend_->start_message(
        {.op = op, .data = data, .peer = peer, .tag = tag, .ready = ready_event(data, after)},
        state);
  } catch (...) {
    state->finish(std::current_exception());
    throw;
  }
  return Work(std::move(state));
}

void Communicator::barrier() {
  Stream host(1);
  collective({.op = CommOp::barrier}, {}, host).wait(host);
}

double Communicator::combine(double value, ReduceOp op) {
  Memory memory;
  Stream host(1);
  const Tensor number = memory.alloc({1}, DType::f64, MemoryTag::communication);
  number.host<double>()[0] = value;
  all_reduce(number, op, host).wait(host);
  return number.host<double>()[0];
}

/// A call that makes communicators, beside which the rank does nothing.
void Communicator::set_up(const std::function<void()>& make) {
  if (threads_) threads_->drain();
  CommCall record = describe(CommOp::split, {});
  record.sequence = ++sequence_;
  const std::int64_t number = flight_->add(std::move(record));
  flight_->start(number);
  flight_->wait(number);
  try {
    make();
  } catch (...) {
    flight_->end(number, true);
    throw;
  }
  flight_->end(number, false);
}

void Communicator::connect_neighbours() {
  if (!backend_->can_connect_neighbours()) return;
  set_up([this] { backend_->connect_neighbours(); });
}

void Communicator::connect_groups() {
  if (!backend_->can_connect_groups()) return;
  set_up([this] { backend_->connect_groups(); });
}

std::unique_ptr<Communicator> Communicator::split(int color, int key, std::string name) {
  std::shared_ptr<CommBackend> group;
  set_up([&] { group = backend_->split(color, key, sequence_); });
  if (!group) return nullptr;
  return std::make_unique<Communicator>(std::move(group), flight_, std::move(name));
}

void Communicator::check() const {
  if (const auto failure = backend_->failure()) failure->check();
}

void Communicator::run_in_background(bool on) {
  if (!on && threads_) threads_->drain();
  in_background_ = on;
}

}  // namespace heddle
