#include "checkpoint/background_save.h"

#include "checkpoint/box_writer.h"
#include "checkpoint/staging.h"
#include "ops/cast.h"
#include "ops/elementwise.h"

namespace heddle {

BackgroundSave::BackgroundSave(Task task) : task_(std::move(task)), thread_([this] { run(); }) {}

BackgroundSave::~BackgroundSave() {
  {
    const std::lock_guard lock(mutex_);
    is_given_up_ = true;
  }
  thread_.join();
}

void BackgroundSave::let_go() {
  std::optional<Stream> stream;
  std::unique_lock lock(mutex_);
  while (status_ == Status::busy && (is_copying_ || next_ < task_.boxes.size())) {
    const bool has_room =
        next_ < task_.boxes.size() && copied_bytes_ + bytes_of(next_) <= task_.buffer_bytes;
    if (!has_room) {
      changed_.wait(lock);
      continue;
    }
    if (!stream) stream.emplace(1, device());
    copied_.push_back(copy(next_, *stream));
    copied_bytes_ += bytes_of(next_);
    ++next_;
  }
}

BackgroundSave::Status BackgroundSave::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void BackgroundSave::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return status_ != Status::busy; });
}

std::optional<Error> BackgroundSave::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void BackgroundSave::run() {
  Status status = Status::durable;
  std::optional<Error> error;
  try {
    write_all();
  } catch (const Error& e) {
    error = e;
  } catch (const std::exception& e) {
    error = Error(ErrorCode::internal, e.what());
  }
  if (error) status = Status::failed;
  const std::lock_guard lock(mutex_);
  status_ = status;
  error_ = std::move(error);
  changed_.notify_all();
}

void BackgroundSave::write_all() {
  BoxWriter writer(*task_.files, task_.staged, *task_.layout);
  if (task_.writer == 0) writer.write_headers();
  Stream stream(1, device());
  while (const auto copied = take(stream)) {
    const KeptBox& box = task_.boxes[copied->box];
    writer.write(box.kind, box.name, box.begin, copied->data);
  }
  {
    const std::lock_guard lock(mutex_);
    if (is_given_up_) return;
  }
  leave_records(*task_.files, task_.staged, task_.writer, writer.finish());
}

std::optional<BackgroundSave::Copied> BackgroundSave::take(Stream& stream) {
  std::unique_lock lock(mutex_);
  if (is_given_up_) return std::nullopt;
  if (!copied_.empty()) {
    Copied first = std::move(copied_.front());
    copied_.pop_front();
    copied_bytes_ -= bytes_of(first.box);
    changed_.notify_all();
    return first;
  }
  if (next_ == task_.boxes.size()) return std::nullopt;
  const std::size_t box = next_++;
  is_copying_ = true;
  lock.unlock();
  Copied copied = copy(box, stream);
  lock.lock();
  is_copying_ = false;
  changed_.notify_all();
  return copied;
}

Device BackgroundSave::device() const {
  return task_.boxes.empty() ? Device{} : task_.boxes.front().data.device();
}

BackgroundSave::Copied BackgroundSave::copy(std::size_t box, Stream& stream) {
  const KeptBox& kept = task_.boxes[box];
  const DType stored = task_.layout->place(kept.kind, kept.name).dtype;
  Tensor data = memory_.alloc(kept.data.shape(), kept.data.dtype(), MemoryTag::workspace);
  ops::copy(kept.data, data, stream);
  stream.synchronize();
  if (stored != data.dtype()) {
    const Tensor rounded = memory_.alloc(data.shape(), stored, MemoryTag::workspace);
    Stream host(1);
    ops::cast(data, rounded, host);
    data = rounded;
  }
  return {box, data};
}

}  // namespace heddle
