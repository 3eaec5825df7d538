#include "tensor/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/strings.h"
#include "tensor/device_runtime.h"
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

/// Where a pool's blocks come from.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /// Null when refused.
  virtual std::byte* take(std::size_t bytes) = 0;
  virtual void give_back(std::byte* block, std::size_t bytes) noexcept = 0;
};

namespace {

class HostSource final : public BlockSource {
 public:
  explicit HostSource(Memory::Mode mode) : mode_(mode) {}

  std::byte* take(std::size_t bytes) override {
    if (bytes < kMapThreshold) return static_cast<std::byte*>(std::aligned_alloc(64, bytes));
    const bool is_dry = mode_ == Memory::Mode::dry;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (is_dry ? MAP_NORESERVE : 0);
    void* block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (block == MAP_FAILED) return nullptr;
    if (!is_dry) ::madvise(block, bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(block);
  }

  void give_back(std::byte* block, std::size_t bytes) noexcept override {
    if (bytes >= kMapThreshold) {
      ::munmap(block, bytes);
    } else {
      std::free(block);
    }
  }

 private:
  // Large blocks are mapped directly, so that giving them back really returns the pages, and ask
  // for huge pages, which saves most of the cost of touching them first.
  static constexpr std::size_t kMapThreshold = std::size_t{1} << 20;

  Memory::Mode mode_;
};

class CudaSource final : public BlockSource {
 public:
  explicit CudaSource(Device device) : device_(device) {}

  std::byte* take(std::size_t bytes) override { return device_runtime::allocate(device_, bytes); }
  void give_back(std::byte* block, std::size_t) noexcept override {
    device_runtime::release(device_, block);
  }

 private:
  Device device_;
};

std::unique_ptr<BlockSource> make_source(Memory::Mode mode, Device device) {
  if (mode == Memory::Mode::real && device.kind == Device::Kind::cuda) {
    return std::make_unique<CudaSource>(device);
  }
  return std::make_unique<HostSource>(mode);
}

}  // namespace

/// Blocks from the system and the ledger. Shared by the Memory and by every block it handed out.
class Memory::Pool {
 public:
  Pool(Mode mode, Device device)
      : mode_(mode), device_(device), source_(make_source(mode, device)) {}
  ~Pool() {
    trim();
    for (std::byte* chunk : chunks_) source_->give_back(chunk, kChunk);
  }

  Mode mode() const { return mode_; }
  Device device() const { return device_; }

  std::byte* take(std::size_t bytes, MemoryTag tag) {
    const std::lock_guard lock(mutex_);
    std::byte* block = from_free(bytes);
    if (block == nullptr) block = from_system(bytes);
    const auto t = static_cast<std::size_t>(tag);
    stats_.live[t] += bytes;
    stats_.peak_by_tag[t] = std::max(stats_.peak_by_tag[t], stats_.live[t]);
    const std::size_t now = total(stats_.live);
    most_live_ = std::max(most_live_, now);
    if (now > stats_.peak) {
      stats_.peak = now;
      stats_.at_peak = stats_.live;
    }
    return block;
  }

  void give_back(std::byte* block, std::size_t bytes, MemoryTag tag) {
    const std::lock_guard lock(mutex_);
    const auto larger = larger_.extract(block);
    free_[larger ? larger.mapped() : bytes].push_back(block);
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
    give_free_blocks_back();
  }

 private:
  // A GPU's driver gives whole pages of 2 MiB and takes its time: small blocks are cut from chunks,
  // which stay.
  static constexpr std::size_t kChunk = std::size_t{8} << 20, kSmall = std::size_t{1} << 20;
  /// What may be kept free whatever is in use.
  static constexpr std::size_t kUsual = std::size_t{32} << 20;
  bool is_cut_from_chunk(std::size_t bytes) const {
    return device_.kind == Device::Kind::cuda && bytes < kSmall;
  }

  /// A step has the sizes of the step before, so soon all its blocks are there, and few are kept
  /// beside those in use. Sizes of experts' rows and of documents' attention change from step to
  /// step: each would keep blocks of its own, and there would be no end of them.
  void look_at_sizes(std::size_t bytes) {
    const std::size_t needed = std::max(most_live_, total(stats_.live) + bytes);
    if (sizes_vary_ || stats_.reserved + bytes <= 2 * needed + kUsual) return;
    sizes_vary_ = true;
    give_free_blocks_back();
  }

  /// Of the size; where sizes vary, larger by a half at most.
  std::byte* from_free(std::size_t bytes) {
    const std::size_t most = sizes_vary_ ? bytes + bytes / 2 : bytes;
    for (auto at = free_.lower_bound(bytes); at != free_.end() && at->first <= most; ++at) {
      if (at->second.empty()) continue;
      std::byte* const block = at->second.back();
      at->second.pop_back();
      if (at->first != bytes) larger_.emplace(block, at->first);
      return block;
    }
    return nullptr;
  }

  /// Where sizes vary, gives back one free block that is not much smaller: the one that takes its
  /// place serves for both.
  void drop_smaller(std::size_t bytes) {
    if (!sizes_vary_) return;
    for (auto at = free_.lower_bound(bytes); at != free_.begin();) {
      --at;
      if (at->first + at->first / 2 < bytes || is_cut_from_chunk(at->first)) return;
      if (at->second.empty()) continue;
      source_->give_back(at->second.back(), at->first);
      stats_.reserved -= at->first;
      at->second.pop_back();
      return;
    }
  }

  std::byte* from_system(std::size_t bytes) {
    if (is_cut_from_chunk(bytes)) return from_chunk(bytes);
    look_at_sizes(bytes);
    drop_smaller(bytes);
    std::byte* block = source_->take(bytes);
    if (block == nullptr) {
      give_free_blocks_back();
      block = source_->take(bytes);
    }
    if (block == nullptr) throw out_of_memory(bytes);
    stats_.reserved += bytes;
    return block;
  }

  std::byte* from_chunk(std::size_t bytes) {
    if (chunks_.empty() || chunk_used_ + bytes > kChunk) {
      chunks_.push_back(from_system(kChunk));
      chunk_used_ = 0;
    }
    std::byte* const block = chunks_.back() + chunk_used_;
    chunk_used_ += bytes;
    return block;
  }

  void give_free_blocks_back() {
    for (auto& [bytes, blocks] : free_) {
      if (is_cut_from_chunk(bytes)) continue;
      for (std::byte* block : blocks) {
        source_->give_back(block, bytes);
        stats_.reserved -= bytes;
      }
      blocks.clear();
    }
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
  const Device device_;
  const std::unique_ptr<BlockSource> source_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;      // by their size
  std::unordered_map<std::byte*, std::size_t> larger_ = {};  // in use, than was asked for
  std::vector<std::byte*> chunks_;                           // the last is being cut
  std::size_t chunk_used_ = 0;
  std::size_t most_live_ = 0;  // ever
  bool sizes_vary_ = false;
  MemoryStats stats_;
};

Memory::Memory(Mode mode, Device device) : pool_(std::make_shared<Pool>(mode, device)) {}

Device Memory::device() const { return pool_->device(); }

Memory Memory::for_host() const { return device().kind == Device::Kind::cpu ? *this : Memory(); }

std::size_t Memory::rounded_bytes(std::size_t bytes, Device device) {
  const std::size_t unit = device.kind == Device::Kind::cuda ? 256 : 64;
  return std::max(unit, (bytes + unit - 1) / unit * unit);
}

Tensor Memory::alloc(const Shape& shape, DType dtype, MemoryTag tag) {
  const std::size_t bytes =
      rounded_bytes(static_cast<std::size_t>(shape.count()) * size_of(dtype), device());
  std::byte* block = pool_->take(bytes, tag);
  std::shared_ptr<std::byte> storage(
      block, [pool = pool_, bytes, tag](std::byte* held) { pool->give_back(held, bytes, tag); });
  return Tensor(std::move(storage), 0, shape, dtype, device());
}

Tensor Memory::zeros(const Shape& shape, DType dtype, MemoryTag tag) {
  Tensor tensor = alloc(shape, dtype, tag);
  if (pool_->mode() == Mode::dry) return tensor;
  if (device().kind == Device::Kind::cuda) {
    device_runtime::zero(device(), tensor.bytes(), tensor.size_bytes());
  } else {
    std::memset(tensor.bytes(), 0, tensor.size_bytes());
  }
  return tensor;
}

Tensor Memory::place(const Tensor& host, MemoryTag tag) {
  if (host.device() == device()) return host;
  const Tensor copy = alloc(host.shape(), host.dtype(), tag);
  if (pool_->mode() == Mode::real) {
    device_runtime::upload(device(), copy.bytes(), host.bytes(), host.size_bytes());
  }
  return copy;
}

MemoryStats Memory::stats() const { return pool_->stats(); }
void Memory::reset_peak() { pool_->reset_peak(); }
void Memory::trim() { pool_->trim(); }

}  // namespace heddle
