#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace heddle::ops::cpu {

/// A thread's own workspace, kept from call to call: the first touch of fresh pages would cost more
/// than many an operation.
class Scratch {
 public:
  static constexpr std::size_t kAlignment = 64;

  /// `bytes` uninitialised bytes, aligned to cache lines and valid until the next call.
  std::byte* at_least(std::size_t bytes) {
    if (bytes > capacity_bytes_) {
      block_.reset();
      block_.reset(new (std::align_val_t{kAlignment}) std::byte[bytes]);
      capacity_bytes_ = bytes;
    }
    return block_.get();
  }

  static Scratch& of_this_thread() {
    thread_local Scratch scratch;
    return scratch;
  }

 private:
  struct Free {
    void operator()(std::byte* block) const {
      ::operator delete[](block, std::align_val_t{kAlignment});
    }
  };
  std::unique_ptr<std::byte[], Free> block_;
  std::size_t capacity_bytes_ = 0;
};

/// Hands out consecutive aligned pieces of one block of T. Made twice: with a null base it
/// measures.
template <class T>
class Carver {
 public:
  explicit Carver(T* base) : base_(base) {}

  T* take(std::size_t count) {
    T* const piece = base_ == nullptr ? nullptr : base_ + used_;
    constexpr std::size_t kUnit = Scratch::kAlignment / sizeof(T);
    used_ += (count + kUnit - 1) / kUnit * kUnit;
    return piece;
  }
  std::size_t used_bytes() const { return used_ * sizeof(T); }

 private:
  T* base_;
  std::size_t used_ = 0;
};

}  // namespace heddle::ops::cpu
