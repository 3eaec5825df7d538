#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"

namespace heddle::ops::cpu {

/// For each of N vectors of `width`: totals[n] += sum over rows, where add_row(row, sums) adds a
/// row to sums[0] .. sums[N-1]. The rows are cut into blocks by their number alone, each summed in
/// order and the blocks then added in order: the result does not depend on the number of threads.
template <class T, std::size_t N, class AddRow>
void add_row_sums(Stream& stream, std::int64_t rows, std::int64_t width,
                  const std::array<T*, N>& totals, const AddRow& add_row) {
  constexpr std::int64_t kRowsPerBlock = 64, kMaxBlocks = 64;
  if (rows == 0 || width == 0) return;
  const std::int64_t blocks = std::clamp<std::int64_t>(rows / kRowsPerBlock, 1, kMaxBlocks);
  const std::int64_t pitch = (width + 63) / 64 * 64;  // no two blocks share a cache line
  const std::unique_ptr<T[]> partial(new T[N * static_cast<std::size_t>(blocks * pitch)]);
  const auto sums_of = [&](std::int64_t block) {
    std::array<T*, N> sums;
    for (std::size_t n = 0; n < N; ++n) {
      sums[n] = partial.get() + (static_cast<std::int64_t>(n) * blocks + block) * pitch;
    }
    return sums;
  };
  parallel_for(stream, blocks, std::max<std::int64_t>(1, blocks * kGrain / (rows * width)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t block = begin; block < end; ++block) {
                   const auto sums = sums_of(block);
                   for (T* const sum : sums) std::fill_n(sum, width, T{0});
                   const std::int64_t last = rows * (block + 1) / blocks;
                   for (std::int64_t row = rows * block / blocks; row < last; ++row) {
                     add_row(row, sums);
                   }
                 }
               });
  parallel_for(stream, width, kGrain / blocks, [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t n = 0; n < N; ++n) {
      T* const first = sums_of(0)[n];
      for (std::int64_t block = 1; block < blocks; ++block) {
        const T* const next = first + block * pitch;
        for (std::int64_t i = begin; i < end; ++i) first[i] += next[i];
      }
      for (std::int64_t i = begin; i < end; ++i) totals[n][i] += first[i];
    }
  });
}

}  // namespace heddle::ops::cpu
