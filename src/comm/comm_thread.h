#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace heddle {

/// A thread that carries out tasks one after another. The tasks must not throw.
class CommThread {
 public:
  CommThread();
  /// Carries out what is queued, then ends.
  ~CommThread();
  CommThread(const CommThread&) = delete;
  CommThread& operator=(const CommThread&) = delete;

  void push(std::function<void()> task);
  /// Returns when everything pushed so far is done.
  void drain();
  /// Lets the thread come to its end by itself: the destructor does not wait.
  void leave_alone();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace heddle
