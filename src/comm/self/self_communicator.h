#pragma once

#include "comm/communicator.h"

namespace heddle {

/// The group of one rank: collectives are the identity, point-to-point does not exist.
class SelfCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view why) noexcept override;

 private:
  Work do_all_reduce(const Tensor& inout, ReduceOp op, Stream& after) override;
  Work do_all_gather(const Tensor& shard, const Tensor& whole, Stream& after) override;
  Work do_reduce_scatter(const Tensor& whole, const Tensor& shard, ReduceOp op,
                         Stream& after) override;
  Work do_all_to_all(const Tensor& send, const Tensor& recv,
                     std::span<const std::int64_t> send_rows,
                     std::span<const std::int64_t> recv_rows, Stream& after) override;
  Work do_send(const Tensor& data, int peer, Stream& after) override;
  Work do_recv(const Tensor& data, int peer, Stream& after) override;
  void do_barrier() override {}
};

}  // namespace heddle
