#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace heddle {

class Tensor;

/// What an allocation is for. Reports and out-of-memory messages give bytes by tag.
enum class MemoryTag : std::uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  communication,
  workspace,
  kv_cache,
  data
};
inline constexpr int kMemoryTags = 8;
std::string_view name_of(MemoryTag tag);

using BytesByTag = std::array<std::size_t, kMemoryTags>;
std::size_t total(const BytesByTag& bytes);

/// What a Memory has handed out.
struct MemoryStats {
  BytesByTag live{};         ///< now
  BytesByTag peak_by_tag{};  ///< each tag's own maximum
  BytesByTag at_peak{};      ///< every tag at the moment the total was largest
  std::size_t peak = 0;      ///< the largest total
  std::size_t reserved = 0;  ///< taken from the system, including blocks kept for reuse
};

/// Allocates tensors on one device and keeps the ledger by tag. Freed blocks are kept and handed
/// out again to requests of the same size: a training step asks for the same sizes every time, so
/// after the first step nothing is taken from the system. Thread-safe. Tensors may outlive it.
///
/// On a GPU a block is reused while work that uses it may still be queued, which is right as long
/// as its next user's work is ordered behind: all compute of a rank is on one stream, and a tensor
/// that another stream uses (communication) is kept until the compute stream waited for that.
class Memory {
 public:
  /// A dry one counts as ever but hands out address space that takes no memory until it is touched;
  /// it needs no device.
  enum class Mode { real, dry };
  explicit Memory(Mode mode = Mode::real, Device device = {});
  explicit Memory(Device device) : Memory(Mode::real, device) {}

  Device device() const;
  /// This memory when it is the host's, else a new one of the host's: for what is made there before
  /// it goes to the device.
  Memory for_host() const;

  /// Uninitialised, contiguous, aligned to 64 bytes (GPU: 256). Throws Error(resources) with the
  /// ledger when the system refuses.
  Tensor alloc(const Shape& shape, DType dtype, MemoryTag tag);
  /// On a GPU it waits for the device: for the set-up, not for steps.
  Tensor zeros(const Shape& shape, DType dtype, MemoryTag tag);
  /// A tensor of for_host() here: the tensor itself, or a copy on the device, with a wait as above.
  Tensor place(const Tensor& host, MemoryTag tag);

  MemoryStats stats() const;
  /// Starts a new peak at what is live now.
  void reset_peak();
  /// Gives unused blocks back to the system.
  void trim();

  /// The bytes an allocation really takes: sizes are rounded up to multiples of the alignment.
  static std::size_t rounded_bytes(std::size_t bytes, Device device = {});

  class Pool;

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace heddle
