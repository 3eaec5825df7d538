#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "comm/comm_backend.h"
#include "comm/flight_recorder.h"
#include "comm/work.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle {

class CommThreads;

/// What one communicator has done so far: calls and bytes (of the whole tensor) by operation.
struct CommCounts {
  struct Entry {
    std::int64_t calls = 0;
    std::int64_t payload_bytes = 0;  ///< what plain calls would have moved
    std::int64_t wire_bytes = 0;     ///< what was moved: less where it was a codec's bytes

    void add(std::int64_t more_calls, std::int64_t payload, std::int64_t wire) {
      calls += more_calls;
      payload_bytes += payload;
      wire_bytes += wire;
    }
    bool operator==(const Entry&) const = default;
  };
  std::array<Entry, kCommOps> by_op{};

  CommCounts& operator+=(const CommCounts& other);
};

/// Moves contiguous tensors between the ranks of one group. Its functions check, count, number and
/// record every call; a backend moves the data. On a dry stream calls are only counted. Sums are
/// made in f32 for the 16-bit floats. Not thread-safe: one thread drives a rank.
///
/// All ranks of a group make the same collectives in the same order. One fails with Error(peer)
/// when another rank stopped.
///
/// `stands_for`: of a codec's bytes, the payload that a plain call would have moved, for counts; 0:
/// the tensor is the payload.
class Communicator {
 public:
  Communicator(std::shared_ptr<CommBackend> backend, std::shared_ptr<FlightRecorder> flight,
               std::string name);
  /// Waits for what runs in the background; but not when an exception is on its way, since the
  /// other ranks may never come.
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return backend_->rank(); }
  int size() const { return backend_->size(); }
  /// "dp", "tp", ...: for messages and records.
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

  Work all_reduce(const Tensor& inout, ReduceOp op, Stream& after);
  /// `whole` holds size() shards in the order of ranks; `shard` may be the caller's slice of it.
  Work all_gather(const Tensor& shard, const Tensor& whole, Stream& after,
                  std::int64_t stands_for = 0);
  /// `shard` may be the caller's slice of `whole`, whose other slices keep their values.
  Work reduce_scatter(const Tensor& whole, const Tensor& shard, ReduceOp op, Stream& after);
  /// Rows are of dimension 0; row counts are given per rank. The tensors do not overlap.
  Work all_to_all(const Tensor& send, const Tensor& recv, std::span<const std::int64_t> send_rows,
                  std::span<const std::int64_t> recv_rows, Stream& after,
                  std::int64_t stands_for = 0);
  /// The tensor of rank `root` to all.
  Work broadcast(const Tensor& data, int root, Stream& after);
  /// Does `work` behind the last collective and before the next one, on a stream of its own where
  /// they run in the background: what has to happen between the two. When it fails, the run does.
  void then(std::function<void(Stream&)> work, Stream& after);
  /// Never waits for the receiver: the Work ends when the message was taken, and until then holds
  /// the tensor, which must not change. Messages with the same `tag` arrive in the order of sends.
  Work send(const Tensor& data, int peer, Stream& after, int tag = 0, std::int64_t stands_for = 0);
  /// Returns at once; the Work ends when the message is there.
  Work recv(const Tensor& data, int peer, Stream& after, int tag = 0, std::int64_t stands_for = 0);
  /// Collective. Messages between neighbours (rank +- 1, around) may then go from GPU to GPU; not
  /// while some travel. Does nothing the second time.
  void connect_neighbours();
  /// Messages from here to end_group() may go together. Both ends of each make the same groups in
  /// the same order.
  void begin_group() { backend_->begin_group(); }
  void end_group() { backend_->end_group(); }
  /// Collective. Groups of messages may then go from GPU to GPU; not while some travel. Does
  /// nothing the second time.
  void connect_groups();
  void barrier();
  /// A number of every rank, combined; waits.
  double combine(double value, ReduceOp op);

  /// Collective. Ranks that give the same color form a new group, ordered by key, then by rank; a
  /// negative color joins none and gets null.
  std::unique_ptr<Communicator> split(int color, int key, std::string name = "group");
  /// Makes every other rank of the world fail with "rank N stopped: why", also those that wait. The
  /// first reason given stays.
  void abort(std::string_view why) noexcept { backend_->abort(why); }

  /// Collectives are then carried out by threads of this communicator, or by a GPU's stream of its
  /// own, so that they overlap with what the caller does until it waits. They begin in order, and
  /// over long links several may be under way: one that needs the result of another is begun when
  /// that was waited for, or behind then(). Otherwise they run on the caller's thread, and his
  /// stream waits for them at once.
  void run_in_background(bool on);

  /// Throws Error(peer) when the world has failed. A GPU's work then ends without its result, and
  /// nobody who waits for it is told otherwise.
  void check() const;

  const CommCounts& counts() const { return counts_; }
  FlightRecorder& flight() const { return *flight_; }
  const std::shared_ptr<CommBackend>& backend() const { return backend_; }
  const std::shared_ptr<FlightRecorder>& shared_flight() const { return flight_; }

 private:
  void count(CommOp op, const Tensor& moved, std::int64_t stands_for);
  CommCall describe(CommOp op, const Tensor& payload) const;
  Work collective(Collective call, const Tensor& payload, Stream& after,
                  std::int64_t stands_for = 0);
  bool is_in_background(bool is_on_gpu) const {
    return in_background_ && size() > 1 &&
           backend_->background(is_on_gpu) != CommBackend::Background::none;
  }
  void push(std::function<void()> task, bool follows);
  void set_up(const std::function<void()>& make);
  /// Makes the call in the background or at once.
  Work start(Collective call, std::int64_t number, Stream& after);
  Work message(CommOp op, const Tensor& data, int peer, int tag, Stream& after,
               std::int64_t stands_for);

  const std::shared_ptr<CommBackend> backend_;
  const std::shared_ptr<FlightRecorder> flight_;
  std::string name_;
  CommCounts counts_;
  std::int64_t sequence_ = 0;
  std::map<std::tuple<CommOp, int, int>, std::int64_t> messages_;  // by operation, peer and tag
  bool in_background_ = false;
  bool next_follows_ = false;  // the next collective stands behind then()
  std::unique_ptr<CommThreads> threads_;
  const int exceptions_at_start_;
};

}  // namespace heddle
