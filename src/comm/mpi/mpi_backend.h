#pragma once

#include <memory>
#include <vector>

#include "comm/comm_backend.h"
#include "comm/mpi/mpi_progress.h"
#include "comm/mpi/mpi_shim.h"

namespace heddle {

/// What the groups of one process share. Outlives none of its parts: all hold it.
struct MpiSession {
  const HeddleMpi& mpi;
  std::shared_ptr<WorldFailure> failure;
  std::shared_ptr<MpiProgress> progress;
  /// Makes all ranks fail with the reason.
  std::function<void(const std::string& reason)> stop_world;
};

/// One rank of a group of processes. The collectives are those of MPI, which block and cannot be
/// interrupted.
class MpiBackend : public CommBackend {
 public:
  MpiBackend(int rank, std::shared_ptr<const Group> group, HeddleMpiComm comm,
             std::shared_ptr<MpiSession> session);

  void run(const Collective& call) override;
  void send(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override;
  void recv(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override;
  std::shared_ptr<CommBackend> split(int color, int key, std::int64_t sequence) override;
  void abort(std::string_view why) noexcept override;
  std::shared_ptr<WorldFailure> failure() const override { return session_->failure; }

 private:
  void all_reduce(const Collective& call);
  void all_gather(const Collective& call);
  void reduce_scatter(const Collective& call);
  /// 16-bit floats are summed as f32, some thousand elements at a time.
  void all_reduce_wide(const Collective& call);
  void reduce_scatter_wide(const Collective& call);
  void all_to_all(const Collective& call);
  void broadcast(const Collective& call);

  const HeddleMpiComm comm_;
  const std::shared_ptr<MpiSession> session_;
  std::vector<std::byte> scratch_;
};

}  // namespace heddle
