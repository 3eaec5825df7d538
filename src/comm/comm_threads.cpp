#include "comm/comm_threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>

namespace heddle {

struct CommThreads::Shared {
  /// Tasks that follow each other. One thread has them, or they are in line for one.
  struct Chain {
    std::deque<std::function<void()>> tasks;
    bool is_open = false;  ///< in line, or a thread is at it
  };

  std::mutex mutex;
  std::condition_variable changed, idle;
  std::deque<std::shared_ptr<Chain>> line;
  std::shared_ptr<Chain> last;  ///< that something was pushed to
  int at_work = 0;
  bool closing = false;

  void run() {
    for (std::unique_lock lock(mutex);;) {
      changed.wait(lock, [this] { return closing || !line.empty(); });
      if (line.empty()) return;
      const auto chain = std::move(line.front());
      line.pop_front();
      ++at_work;
      while (!chain->tasks.empty()) {
        auto task = std::move(chain->tasks.front());
        chain->tasks.pop_front();
        lock.unlock();
        task();
        task = nullptr;
        lock.lock();
      }
      chain->is_open = false;
      --at_work;
      if (line.empty() && at_work == 0) idle.notify_all();
    }
  }
};

CommThreads::CommThreads(int threads) : shared_(std::make_shared<Shared>()) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([shared = shared_] { shared->run(); });
}

CommThreads::~CommThreads() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->closing = true;
  }
  shared_->changed.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void CommThreads::push(std::function<void()> task, bool follows) {
  {
    const std::lock_guard lock(shared_->mutex);
    auto& chain = shared_->last;
    if (!follows || !chain) chain = std::make_shared<Shared::Chain>();
    chain->tasks.push_back(std::move(task));
    if (chain->is_open) return;
    chain->is_open = true;
    shared_->line.push_back(chain);
  }
  shared_->changed.notify_one();
}

void CommThreads::drain() {
  std::unique_lock lock(shared_->mutex);
  shared_->idle.wait(lock, [this] { return shared_->line.empty() && shared_->at_work == 0; });
}

void CommThreads::leave_alone() {
  for (std::thread& thread : threads_) thread.detach();
}

}  // namespace heddle
