#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/mpi_shim.h"
#include "comm/work.h"
#include "comm/world_failure.h"
#include "tensor/tensor.h"

namespace heddle {

/// Ends the Work of messages under way. A thread looks after them with short sleeps, and only while
/// there are any.
class MpiProgress : public Wakeable {
 public:
  MpiProgress(const HeddleMpi& mpi, std::shared_ptr<WorldFailure> failure);
  ~MpiProgress() override;

  struct Message {
    HeddleMpiRequest* request = nullptr;
    Tensor data = {};
    bool is_receive = false;
    std::string peer = {};  ///< "rank 3", for messages
    std::shared_ptr<WorkState> done = {};
  };
  void add(Message message);
  void wake_all() noexcept override;

 private:
  void run();
  /// Whether it has ended, and then its Work too.
  bool advance(Message& message);

  const HeddleMpi& mpi_;
  const std::shared_ptr<WorldFailure> failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Message> under_way_;
  bool is_stopping_ = false;
  std::thread thread_;
};

/// Throws Error(peer) that names the call when `code` is not success.
void check_mpi(const HeddleMpi& mpi, int code, const char* call);

}  // namespace heddle
