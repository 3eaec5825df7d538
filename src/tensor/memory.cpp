#include "tensor/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/strings.h"
#include "tensor/tensor.h"

namespace heddle {

std::string_view name_of(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::parameters: return "parameters";
    case MemoryTag::gradients: return "gradients";
    case MemoryTag::optimizer: return "optimizer";
    case MemoryTag::activations: return "activations";
    case MemoryTag::communication: return "communication";
    case MemoryTag::workspace: return "workspace";
    case MemoryTag::kv_cache: return "kv_cache";
    case MemoryTag::data: return "data";
  }
  return "?";
}

std::size_t total(const BytesByTag& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
}

/// Blocks from the system and the ledger. Shared by the Memory and by every block it handed out.
class Memory::Pool {
 public:
  explicit Pool(Mode mode) : mode_(mode) {}
  ~Pool() { trim(); }

  Mode mode() const { return mode_; }

  std::byte* take(std::size_t bytes, MemoryTag tag) {
    const std::lock_guard lock(mutex_);
    std::byte* block = nullptr;
    if (auto& free = free_[bytes]; !free.empty()) {
      block = free.back();
      free.pop_back();
    } else {
      block = from_system(bytes);
    }
    const auto t = static_cast<std::size_t>(tag);
    stats_.live[t] += bytes;
    stats_.peak_by_tag[t] = std::max(stats_.peak_by_tag[t], stats_.live[t]);
    if (const auto now = total(stats_.live); now > stats_.peak) {
      stats_.peak = now;
      stats_.at_peak = stats_.live;
    }
    return block;
  }

  void give_back(std::byte* block, std::size_t bytes, MemoryTag tag) {
    const std::lock_guard lock(mutex_);
    free_[bytes].push_back(block);
    stats_.live[static_cast<std::size_t>(tag)] -= bytes;
  }

  MemoryStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak = total(stats_.live);
    stats_.peak_by_tag = stats_.at_peak = stats_.live;
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    for (auto& [bytes, blocks] : free_) {
      for (std::byte* block : blocks) to_system(block, bytes);
    }
    free_.clear();
  }

 private:
  // Large blocks are mapped directly, so that giving them back really returns the pages, and ask
  // for huge pages, which saves most of the cost of touching them first.
  static constexpr std::size_t kMapThreshold = std::size_t{1} << 20;

  std::byte* from_system(std::size_t bytes) {
    void* block = nullptr;
    if (bytes >= kMapThreshold) {
      const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (mode_ == Mode::dry ? MAP_NORESERVE : 0);
      block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
      if (block == MAP_FAILED) block = nullptr;
      if (block != nullptr && mode_ == Mode::real) ::madvise(block, bytes, MADV_HUGEPAGE);
    } else {
      block = std::aligned_alloc(64, bytes);
    }
    if (block == nullptr) throw out_of_memory(bytes);
    stats_.reserved += bytes;
    return static_cast<std::byte*>(block);
  }

  void to_system(std::byte* block, std::size_t bytes) {
    if (bytes >= kMapThreshold) {
      ::munmap(block, bytes);
    } else {
      std::free(block);
    }
    stats_.reserved -= bytes;
  }

  Error out_of_memory(std::size_t bytes) const {
    std::string held;
    for (int tag = 0; tag < kMemoryTags; ++tag) {
      const auto live = stats_.live[static_cast<std::size_t>(tag)];
      if (live > 0) {
        held +=
            fmt::format("{}{} {}", held.empty() ? "" : ", ", name_of(static_cast<MemoryTag>(tag)),
                        format_bytes(static_cast<double>(live)));
      }
    }
    return Error(
        ErrorCode::resources,
        fmt::format("out of memory: {} more were refused while holding {}",
                    format_bytes(static_cast<double>(bytes)), held.empty() ? "nothing" : held),
        "lower train.microbatch or data.seq_len, or set train.recompute = \"block\"");
  }

  const Mode mode_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;
  MemoryStats stats_;
};

Memory::Memory(Mode mode) : pool_(std::make_shared<Pool>(mode)) {}

std::size_t Memory::rounded_bytes(std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  return std::max(kLine, (bytes + kLine - 1) / kLine * kLine);
}

Tensor Memory::alloc(const Shape& shape, DType dtype, MemoryTag tag) {
  const std::size_t bytes = rounded_bytes(static_cast<std::size_t>(shape.count()) * size_of(dtype));
  std::byte* block = pool_->take(bytes, tag);
  std::shared_ptr<std::byte> storage(
      block, [pool = pool_, bytes, tag](std::byte* held) { pool->give_back(held, bytes, tag); });
  return Tensor(std::move(storage), 0, shape, dtype);
}

Tensor Memory::zeros(const Shape& shape, DType dtype, MemoryTag tag) {
  Tensor tensor = alloc(shape, dtype, tag);
  if (pool_->mode() == Mode::real) std::memset(tensor.bytes(), 0, tensor.size_bytes());
  return tensor;
}

MemoryStats Memory::stats() const { return pool_->stats(); }
void Memory::reset_peak() { pool_->reset_peak(); }
void Memory::trim() { pool_->trim(); }

}  // namespace heddle
