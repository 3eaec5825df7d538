#include "comm/communicator.h"

#include <numeric>

#include "base/check.h"

namespace heddle {

std::string_view name_of(CommOp op) {
  switch (op) {
    case CommOp::all_reduce: return "all_reduce";
    case CommOp::all_gather: return "all_gather";
    case CommOp::reduce_scatter: return "reduce_scatter";
    case CommOp::all_to_all: return "all_to_all";
    case CommOp::send: return "send";
    case CommOp::recv: return "recv";
    case CommOp::barrier: return "barrier";
  }
  return "?";
}

void Communicator::count(CommOp op, const Tensor& payload) {
  auto& entry = counts_.by_op[static_cast<std::size_t>(op)];
  ++entry.calls;
  entry.payload_bytes += static_cast<std::int64_t>(payload.size_bytes());
}

Work Communicator::all_reduce(const Tensor& inout, ReduceOp op, Stream& after) {
  count(CommOp::all_reduce, inout);
  return do_all_reduce(inout, op, after);
}

Work Communicator::all_gather(const Tensor& shard, const Tensor& whole, Stream& after) {
  HEDDLE_CHECK(shard.count() * size() == whole.count() && shard.dtype() == whole.dtype(),
               "all_gather of {} into {} over {} ranks", shard.shape().text(), whole.shape().text(),
               size());
  count(CommOp::all_gather, whole);
  return do_all_gather(shard, whole, after);
}

Work Communicator::reduce_scatter(const Tensor& whole, const Tensor& shard, ReduceOp op,
                                  Stream& after) {
  HEDDLE_CHECK(shard.count() * size() == whole.count() && shard.dtype() == whole.dtype(),
               "reduce_scatter of {} into {} over {} ranks", whole.shape().text(),
               shard.shape().text(), size());
  count(CommOp::reduce_scatter, whole);
  return do_reduce_scatter(whole, shard, op, after);
}

Work Communicator::all_to_all(const Tensor& send, const Tensor& recv,
                              std::span<const std::int64_t> send_rows,
                              std::span<const std::int64_t> recv_rows, Stream& after) {
  const auto sum = [](std::span<const std::int64_t> rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  };
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
  count(CommOp::all_to_all, send);
  return do_all_to_all(send, recv, send_rows, recv_rows, after);
}

Work Communicator::send(const Tensor& data, int peer, Stream& after) {
  HEDDLE_CHECK(peer >= 0 && peer < size() && peer != rank(), "send from {} to {}", rank(), peer);
  count(CommOp::send, data);
  return do_send(data, peer, after);
}

Work Communicator::recv(const Tensor& data, int peer, Stream& after) {
  HEDDLE_CHECK(peer >= 0 && peer < size() && peer != rank(), "recv at {} from {}", rank(), peer);
  count(CommOp::recv, data);
  return do_recv(data, peer, after);
}

void Communicator::barrier() {
  ++counts_.by_op[static_cast<std::size_t>(CommOp::barrier)].calls;
  do_barrier();
}

}  // namespace heddle
