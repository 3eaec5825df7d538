#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "comm/comm_backend.h"
#include "comm/world_failure.h"

namespace heddle {

/// What the threads of one group share. A collective is: all arrive and show their tensors, each
/// does its part reading and writing the others' tensors directly, all leave together. When ranks
/// arrive for different calls, the world fails with a message that says which.
class ThreadGroup : public Wakeable {
 public:
  ThreadGroup(std::shared_ptr<WorldFailure> failure, std::shared_ptr<const Group> group);

  const std::shared_ptr<WorldFailure>& failure() const { return failure_; }
  const std::shared_ptr<const Group>& group() const { return group_; }

  void run(int rank, const Collective& call);
  void send(int from, int to, int tag, const Tensor& data, std::shared_ptr<WorkState> done);
  void recv(int from, int to, int tag, const Tensor& data, std::shared_ptr<WorkState> done);

  struct Part {
    std::shared_ptr<ThreadGroup> group;  ///< null for a negative color
    int rank = 0;
  };
  Part split(int rank, int color, int key, std::int64_t sequence);

  void wake_all() noexcept override;

 private:
  struct Place {  // of one rank in the collective under way
    bool is_taken = false;
    Collective call;
    int color = 0, key = 0;
    std::shared_ptr<ThreadGroup> part;
  };
  struct Message {
    Tensor data;
    std::shared_ptr<WorkState> done;
  };
  struct Line {  // between two ranks with one tag; at most one of the two has entries
    std::deque<Message> sent, awaited;
  };

  int size() const { return static_cast<int>(places_.size()); }
  void arrive(int rank, const Collective& call, int color = 0, int key = 0);
  void leave();
  /// Returns when all ranks have called it; the last one does `at_last` first.
  void meet(std::unique_lock<std::mutex> lock, const std::function<void()>& at_last = {});
  void settle_dispute(std::unique_lock<std::mutex>& lock);
  std::string dispute() const;
  void reduce(int rank, const Collective& call);
  void gather(const Collective& call);
  void take_from(int rank, const Collective& call);
  void exchange_rows(int rank, const Collective& call);
  void transfer(int from, int to, Message message, Message place);

  const std::shared_ptr<WorldFailure> failure_;
  const std::shared_ptr<const Group> group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> places_;
  int arrived_ = 0;
  std::atomic<std::uint64_t> meetings_ = 0;
  bool is_disputed_ = false;
  std::chrono::steady_clock::time_point vote_ends_;
  std::map<std::tuple<int, int, int>, Line> lines_;
};

}  // namespace heddle
