#include "comm/comm_thread.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>

namespace heddle {

struct CommThread::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool closing = false;

  void run() {
    for (std::unique_lock lock(mutex);;) {
      changed.wait(lock, [this] { return closing || !tasks.empty(); });
      if (tasks.empty()) return;
      auto task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }
};

CommThread::CommThread()
    : shared_(std::make_shared<Shared>()), thread_([shared = shared_] { shared->run(); }) {}

CommThread::~CommThread() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->closing = true;
  }
  shared_->changed.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CommThread::push(std::function<void()> task) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->tasks.push_back(std::move(task));
  }
  shared_->changed.notify_one();
}

void CommThread::drain() {
  std::promise<void> reached;
  push([&reached] { reached.set_value(); });
  reached.get_future().wait();
}

void CommThread::leave_alone() { thread_.detach(); }

}  // namespace heddle
