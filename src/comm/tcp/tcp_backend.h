#pragma once

#include <functional>
#include <memory>

#include "comm/comm_backend.h"
#include "comm/tcp/tcp_links.h"

namespace heddle {

/// What the groups of one process share.
struct TcpSession {
  std::shared_ptr<WorldFailure> failure;
  std::shared_ptr<TcpLinks> links;
  /// Makes all ranks fail with the reason.
  std::function<void(const std::string& reason)> stop_world;
};

/// One rank of a group of processes that are joined by TCP connections. For what travels on the
/// host beside NCCL: counts, flags, a checkpoint's pieces. Sums are made in the order of ranks.
class TcpBackend : public CommBackend {
 public:
  TcpBackend(int rank, std::shared_ptr<const Group> group, std::shared_ptr<TcpSession> session);

  void run(const Collective& call) override;
  void send(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override;
  void recv(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override;
  std::shared_ptr<CommBackend> split(int color, int key, std::int64_t sequence) override;
  void abort(std::string_view why) noexcept override;
  std::shared_ptr<WorldFailure> failure() const override { return session_->failure; }
  /// Several where a rank is far, so that one call's messages are on their way while another's are
  /// waited for.
  int calls_at_once() const override;

 private:
  /// Those of one call. None that it has begun to send is left when this ends, however that comes
  /// about.
  class Messages;
  TcpLinks::Line line(std::int64_t sequence, int peer) const;
  std::vector<int> others() const;
  void combine_with_others(const Collective& call, Messages& messages, std::byte* own,
                           std::byte* out, std::int64_t count) const;
  void barrier(const Collective& call);
  void all_reduce(const Collective& call);
  void all_gather(const Collective& call);
  void reduce_scatter(const Collective& call);
  void all_to_all(const Collective& call);
  void broadcast(const Collective& call);

  const std::shared_ptr<TcpSession> session_;
};

}  // namespace heddle
