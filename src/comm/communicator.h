#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle {

enum class ReduceOp : std::uint8_t { sum, max };

/// A communication that was started. The result may be read, and the input reused, only by work
/// ordered after wait().
class [[nodiscard]] Work {
 public:
  /// Orders `consumer` after the communication; the host does not block.
  void wait(Stream& consumer) const { consumer.wait(done_); }

 private:
  Event done_;
};

enum class CommOp : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  send,
  recv,
  barrier
};
inline constexpr int kCommOps = 7;
std::string_view name_of(CommOp op);

/// What one communicator has done so far: calls and payload bytes (of the whole tensor) by
/// operation.
struct CommCounts {
  struct Entry {
    std::int64_t calls = 0;
    std::int64_t payload_bytes = 0;
  };
  std::array<Entry, kCommOps> by_op{};
};

/// Moves tensors between the ranks of one group. The public functions check sizes and count;
/// backends fill in do_*. Not thread-safe: one thread drives a rank.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  Work all_reduce(const Tensor& inout, ReduceOp op, Stream& after);
  /// `whole` holds size() shards in the order of ranks.
  Work all_gather(const Tensor& shard, const Tensor& whole, Stream& after);
  Work reduce_scatter(const Tensor& whole, const Tensor& shard, ReduceOp op, Stream& after);
  /// Rows are of dimension 0; row counts are given per rank.
  Work all_to_all(const Tensor& send, const Tensor& recv, std::span<const std::int64_t> send_rows,
                  std::span<const std::int64_t> recv_rows, Stream& after);
  Work send(const Tensor& data, int peer, Stream& after);
  Work recv(const Tensor& data, int peer, Stream& after);
  void barrier();

  /// Ranks that give the same color form a new group, ordered by key.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// Unblocks every rank of the group, which then fails with `why`.
  virtual void abort(std::string_view why) noexcept = 0;

  const CommCounts& counts() const { return counts_; }

 private:
  virtual Work do_all_reduce(const Tensor& inout, ReduceOp op, Stream& after) = 0;
  virtual Work do_all_gather(const Tensor& shard, const Tensor& whole, Stream& after) = 0;
  virtual Work do_reduce_scatter(const Tensor& whole, const Tensor& shard, ReduceOp op,
                                 Stream& after) = 0;
  virtual Work do_all_to_all(const Tensor& send, const Tensor& recv,
                             std::span<const std::int64_t> send_rows,
                             std::span<const std::int64_t> recv_rows, Stream& after) = 0;
  virtual Work do_send(const Tensor& data, int peer, Stream& after) = 0;
  virtual Work do_recv(const Tensor& data, int peer, Stream& after) = 0;
  virtual void do_barrier() = 0;

  void count(CommOp op, const Tensor& payload);

  CommCounts counts_;
};

}  // namespace heddle
