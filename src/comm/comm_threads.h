#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace heddle {

/// Threads that carry out tasks. Tasks that follow each other go one after another, on any of the
/// threads; others in the order in which they came, as many at a time as there are threads. They
/// must not throw.
class CommThreads {
 public:
  explicit CommThreads(int threads);
  /// Carries out what is queued, then ends.
  ~CommThreads();
  CommThreads(const CommThreads&) = delete;
  CommThreads& operator=(const CommThreads&) = delete;

  /// `follows`: not before what was pushed last is done.
  void push(std::function<void()> task, bool follows);
  /// Returns when everything pushed so far is done.
  void drain();
  /// Lets the threads come to their end by themselves: the destructor does not wait.
  void leave_alone();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace heddle
