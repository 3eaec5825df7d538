#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file_system.h"
#include "checkpoint/own_boxes.h"

namespace heddle {

/// Writes one rank's boxes into a staged checkpoint, on a thread of its own, while the rank goes on
/// computing. It reads the tensors where they are, until they are about to change: what is not
/// written by then is copied, as far as a bounded buffer has room, and the rest is waited for. Uses
/// no communicator.
class BackgroundSave {
 public:
  /// Copies of at most so many bytes at a time; boxes are of kBoxElements at most.
  static constexpr std::size_t kBufferBytes = std::size_t{192} << 20;
  static constexpr std::int64_t kBoxElements = std::int64_t{1} << 20;

  struct Task {
    FileSystem* files = nullptr;
    std::filesystem::path staged;
    std::shared_ptr<const CheckpointLayout> layout;
    std::vector<KeptBox> boxes;
    int writer = 0;      ///< the first one writes the headers too
    Device device = {};  ///< that the boxes lie on
    std::size_t buffer_bytes = kBufferBytes;
  };
  explicit BackgroundSave(Task task);
  /// Gives up what is not written.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// To be called before the tensors change. Returns when their old values are not needed any more.
  void let_go();

  enum class Status { busy, durable, failed };
  Status status() const;
  /// Waits until it is not busy.
  void wait() const;
  /// Why it failed.
  std::optional<Error> error() const;
  /// The most that it held beside the tensors.
  std::size_t peak_bytes() const { return memory_.stats().peak; }

 private:
  struct Copied {
    std::size_t box = 0;
    Tensor data;
  };
  void run();
  void write_all();
  /// The next box in host memory, as the file has it; nullopt when there is none or all is given
  /// up.
  std::optional<Copied> take(Stream& stream);
  Copied copy(std::size_t box, Stream& stream);
  /// That the boxes lie on.
  Device device() const;
  std::size_t bytes_of(std::size_t box) const { return task_.boxes[box].data.size_bytes(); }

  const Task task_;
  Memory memory_;  // of the host
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::size_t next_ = 0;     // the first box that nobody has copied or is copying
  bool is_copying_ = false;  // the thread is
  bool is_given_up_ = false;
  std::deque<Copied> copied_;  // by let_go
  std::size_t copied_bytes_ = 0;
  Status status_ = Status::busy;
  std::optional<Error> error_;
  std::thread thread_;
};

}  // namespace heddle
