#include <cub/device/device_radix_sort.cuh>

#include <bit>

#include "ops/cuda/sort_ids.h"
#include "ops/cuda/vectors.h"
#include "ops/embedding.h"

namespace heddle::ops::cuda {
namespace {

__global__ void keys_kernel(const std::int32_t* ids, std::int32_t count, std::uint32_t absent,
                            std::uint32_t* keys, std::int32_t* positions) {
  const auto i = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  keys[i] = ids[i] == kAbsentRow ? absent : static_cast<std::uint32_t>(ids[i]);
  positions[i] = i;
}

struct SortMemory {
  std::uint32_t *keys_in, *keys;
  std::int32_t *positions_in, *positions;
  std::byte *extra, *scratch;

  std::size_t carve(void* base, std::int64_t count, std::size_t extra_bytes,
                    std::size_t scratch_bytes) {
    Carver carver(base);
    keys_in = carver.take<std::uint32_t>(count);
    keys = carver.take<std::uint32_t>(count);
    positions_in = carver.take<std::int32_t>(count);
    positions = carver.take<std::int32_t>(count);
    extra = carver.take<std::byte>(static_cast<std::int64_t>(extra_bytes));
    scratch = carver.take<std::byte>(static_cast<std::int64_t>(scratch_bytes));
    return carver.used_bytes();
  }
};

}  // namespace

SortedIds sort_ids(const Tensor& ids, std::int64_t rows, std::size_t extra_bytes,
                   StreamState& state) {
  HEDDLE_CHECK(ids.count() < (std::int64_t{1} << 31), "{} ids to sort", ids.count());
  const auto count = static_cast<std::int32_t>(ids.count());
  const auto absent = static_cast<std::uint32_t>(rows);
  const int bits = std::bit_width(absent);
  SortMemory memory{};
  std::size_t sort_bytes = 0;
  const auto sort = [&](void* scratch) {
    HEDDLE_CUDA(cub::DeviceRadixSort::SortPairs(scratch, sort_bytes, memory.keys_in, memory.keys,
                                                memory.positions_in, memory.positions, count, 0,
                                                bits, state.stream));
  };
  sort(nullptr);
  const std::size_t bytes = memory.carve(nullptr, count, extra_bytes, sort_bytes);
  memory.carve(state.workspace.at_least(bytes), count, extra_bytes, sort_bytes);
  keys_kernel<<<blocks_for(count, 256), 256, 0, state.stream>>>(
      device_data<std::int32_t>(ids), count, absent, memory.keys_in, memory.positions_in);
  HEDDLE_CUDA(cudaGetLastError());
  sort(memory.scratch);
  return {memory.keys, memory.positions, memory.extra};
}

}  // namespace heddle::ops::cuda
