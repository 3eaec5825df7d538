#include "comm/mpi/mpi_progress.h"

#include <chrono>

#include "base/error.h"

namespace heddle {
namespace {

constexpr std::chrono::microseconds kPause{50};

}  // namespace

void check_mpi(const HeddleMpi& mpi, int code, const char* call) {
  if (code == 0) return;
  char text[256];
  mpi.error_text(code, text, sizeof(text));
  fail(ErrorCode::peer, "{} failed: {}", call, text);
}

MpiProgress::MpiProgress(const HeddleMpi& mpi, std::shared_ptr<WorldFailure> failure)
    : mpi_(mpi), failure_(std::move(failure)), thread_([this] { run(); }) {}

MpiProgress::~MpiProgress() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void MpiProgress::add(Message message) {
  {
    const std::lock_guard lock(mutex_);
    failure_->check();
    under_way_.push_back(std::move(message));
  }
  changed_.notify_all();
}

void MpiProgress::wake_all() noexcept {
  const std::lock_guard lock(mutex_);
  const auto error = std::make_exception_ptr(Error(ErrorCode::peer, failure_->reason()));
  for (Message& message : under_way_) {
    message.done->finish(error);
    // MPI may still write there, until the process ends.
    static_cast<void>(new Tensor(std::move(message.data)));
  }
  under_way_.clear();
}

void MpiProgress::run() {
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [this] { return is_stopping_ || !under_way_.empty(); });
    if (is_stopping_) return;
    std::erase_if(under_way_, [this](Message& message) { return advance(message); });
    if (under_way_.empty()) continue;
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

bool MpiProgress::advance(Message& message) {
  int is_done = 0;
  std::int64_t received = 0;
  std::exception_ptr failure;
  try {
    check_mpi(mpi_, mpi_.test(message.request, &is_done, &received),
              message.is_receive ? "MPI_Irecv" : "MPI_Issend");
    if (!is_done) return false;
    if (message.is_receive && received != static_cast<std::int64_t>(message.data.size_bytes())) {
      fail(ErrorCode::peer, "{} sent {} bytes where {} were expected", message.peer, received,
           message.data.size_bytes());
    }
  } catch (...) {
    failure = std::current_exception();
  }
  message.data = {};  // who waits may count on the tensor being released
  message.done->finish(failure);
  return true;
}

}  // namespace heddle
