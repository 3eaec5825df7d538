#pragma once

#include <memory>

#include "comm/comm_backend.h"
#include "comm/threads/thread_group.h"

namespace heddle {

/// One rank of a group of threads.
class ThreadBackend : public CommBackend {
 public:
  ThreadBackend(int rank, std::shared_ptr<ThreadGroup> shared)
      : CommBackend(rank, shared->group()), shared_(std::move(shared)) {}

  void run(const Collective& call) override { shared_->run(rank(), call); }
  void send(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override {
    shared_->send(rank(), peer, tag, data, std::move(done));
  }
  void recv(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override {
    shared_->recv(peer, rank(), tag, data, std::move(done));
  }
  std::shared_ptr<CommBackend> split(int color, int key, std::int64_t sequence) override;
  void abort(std::string_view why) noexcept override;

 private:
  const std::shared_ptr<ThreadGroup> shared_;
};

}  // namespace heddle
