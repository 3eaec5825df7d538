#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/work.h"
#include "tensor/tensor.h"

namespace heddle {

class WorldFailure;

/// False for a tensor that is absent.
inline bool is_on_gpu(const Tensor& tensor) {
  return tensor.defined() && tensor.device().kind == Device::Kind::cuda;
}

enum class ReduceOp : std::uint8_t { sum, max };

/// One rank's part in a collective. The tensors are contiguous and fit each other; absent where the
/// operation has none.
struct Collective {
  CommOp op = CommOp::barrier;
  ReduceOp reduce = ReduceOp::sum;
  Tensor in = {}, out = {};  ///< for all_reduce and broadcast the same tensor
  std::vector<std::int64_t> send_rows = {}, recv_rows = {};
  int root = 0;  ///< of a broadcast
  std::int64_t sequence = 0;
  Event ready = {};  ///< tensors on a GPU may be read and written after this
};

/// Moves the data of a Communicator, which checks and records. Collectives come in order, and one
/// at a time unless the backend takes more; send and recv may come from another thread meanwhile.
class CommBackend {
 public:
  CommBackend(int rank, std::shared_ptr<const Group> group)
      : rank_(rank), group_(std::move(group)) {}
  virtual ~CommBackend() = default;
  CommBackend(const CommBackend&) = delete;
  CommBackend& operator=(const CommBackend&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(group_->ranks.size()); }
  /// The number in the world of a rank of this group.
  int world_rank(int rank) const { return group_->ranks[static_cast<std::size_t>(rank)]; }
  const std::shared_ptr<const Group>& group() const { return group_; }

  /// Returns when this rank's result is there and its input may be reused. Tensors are on the host.
  virtual void run(const Collective& call) = 0;
  /// The same for tensors anywhere. May return before, having put in `state` what is left to do for
  /// whoever waits.
  virtual void start(const Collective& call, WorkState& state);
  /// How collectives can overlap with what the caller does: on a thread, on a stream that they have
  /// to themselves (start() returns at once), or not at all.
  enum class Background { thread, own_stream, none };
  virtual Background background(bool /*is_on_gpu*/) const { return Background::thread; }
  /// How many collectives on the host may be under way, on as many threads. Ranks need not agree.
  virtual int calls_at_once() const { return 1; }
  /// That stream.
  virtual Stream& stream();
  /// Take the message's place in line and return; `done` is finished when the message was taken,
  /// or has come. For tensors on the host; others come to start_message.
  virtual void send(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) = 0;
  virtual void recv(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) = 0;
  /// Either, for a tensor anywhere that is valid after `ready`.
  struct Message {
    CommOp op = CommOp::send;
    Tensor data = {};
    int peer = 0, tag = 0;
    Event ready = {};
  };
  virtual void start_message(const Message& message, std::shared_ptr<WorkState> done);
  /// Whether messages between neighbours (rank +- 1, around) have a faster way than the usual one,
  /// which is there after connect_neighbours(), a collective.
  virtual bool can_connect_neighbours() const { return false; }
  virtual void connect_neighbours() {}
  /// Messages from begin_group() on are started together by end_group(). Whether that is faster on
  /// a GPU than one by one, which it is after connect_groups(), a collective.
  virtual void begin_group() {}
  virtual void end_group() {}
  virtual bool can_connect_groups() const { return false; }
  virtual void connect_groups() {}
  /// Null for a negative color.
  virtual std::shared_ptr<CommBackend> split(int color, int key, std::int64_t sequence) = 0;
  /// Makes every rank of the world fail at once.
  virtual void abort(std::string_view why) noexcept = 0;
  /// Who tells when the world has failed; null where it fails by other means.
  virtual std::shared_ptr<WorldFailure> failure() const { return nullptr; }

 private:
  const int rank_;
  const std::shared_ptr<const Group> group_;
};

}  // namespace heddle
