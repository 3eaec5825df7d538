#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <tuple>
#include <vector>

#include "planner/search.h"

// What a search keeps of the layouts it goes through, one at a time, in its inner loop. Each of
// these can also be joined from the parts that several threads have, with the same result.

namespace heddle::planner {

/// Of layouts that take and hold the same: only so that the order does not depend on threads.
inline auto order_of(const Candidate& c) {
  return std::tuple(c.pp, c.cp, c.sequences, c.tp, c.zero, c.chunks, static_cast<int>(c.schedule),
                    c.sequence, static_cast<int>(c.vocabulary), static_cast<int>(c.recompute));
}

/// Of equally fast ones the one that holds less comes first.
inline bool is_faster(const Found& a, const Found& b) {
  if (a.time.total != b.time.total) return a.time.total < b.time.total;
  if (a.memory.total() != b.memory.total()) return a.memory.total() < b.memory.total();
  return order_of(a.candidate) < order_of(b.candidate);
}

/// The `keep` fastest of many. Has room for all of them from the start.
class Fastest {
 public:
  explicit Fastest(int keep) : keep_(static_cast<std::size_t>(keep)) { heap_.reserve(keep_ + 1); }

  void add(const Found& found) {
    if (heap_.size() == keep_ && !is_faster(found, heap_.front())) return;
    heap_.push_back(found);
    std::push_heap(heap_.begin(), heap_.end(), is_faster);
    if (heap_.size() <= keep_) return;
    std::pop_heap(heap_.begin(), heap_.end(), is_faster);
    heap_.pop_back();
  }
  const std::vector<Found>& unordered() const { return heap_; }

 private:
  const std::size_t keep_;
  std::vector<Found> heap_;
};

/// The fastest of every class: of a mesh, of an amount of memory.
class FastestByClass {
 public:
  explicit FastestByClass(std::size_t classes) : found_(classes), is_there_(classes, 0) {}

  void add(std::size_t one, const Found& found) {
    if (is_there_[one] != 0 && !is_faster(found, found_[one])) return;
    found_[one] = found;
    is_there_[one] = 1;
  }
  void add(const FastestByClass& other) {
    for (std::size_t i = 0; i < found_.size(); ++i) {
      if (other.is_there_[i] != 0) add(i, other.found_[i]);
    }
  }
  std::vector<Found> sorted() const {
    std::vector<Found> all;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      if (is_there_[i] != 0) all.push_back(found_[i]);
    }
    std::sort(all.begin(), all.end(), is_faster);
    return all;
  }

 private:
  std::vector<Found> found_;
  std::vector<char> is_there_;
};

/// Numbers of 2^first and more in classes of about the same relative width, 2^bits per octave.
class Scale {
 public:
  constexpr Scale(int first, int octaves, int bits)
      : shift_(52 - bits),
        first_(static_cast<std::int64_t>(first + 1023) << bits),
        last_((static_cast<std::int64_t>(octaves) << bits) - 1) {}

  std::size_t size() const { return static_cast<std::size_t>(last_ + 1); }
  /// By exponent and leading bits: no logarithm in the inner loop.
  std::size_t place(double value) const {
    const auto leading = static_cast<std::int64_t>(std::bit_cast<std::uint64_t>(value) >> shift_);
    return static_cast<std::size_t>(std::clamp<std::int64_t>(leading - first_, 0, last_));
  }

 private:
  int shift_;
  std::int64_t first_, last_;
};

/// The fastest for every amount of memory. What remains of a walk from small to large that only
/// keeps what is faster than all before is the front of time against memory.
class Front {
 public:
  void add(const Found& found) { fastest_.add(kMemory.place(found.memory.total()), found); }
  void add(const Front& other) { fastest_.add(other.fastest_); }
  std::vector<Found> sorted() const {
    std::vector<Found> all = fastest_.sorted();
    std::sort(all.begin(), all.end(),
              [](const Found& a, const Found& b) { return a.memory.total() < b.memory.total(); });
    std::vector<Found> front;
    for (const Found& found : all) {
      if (front.empty() || found.time.total < front.back().time.total) front.push_back(found);
    }
    return front;
  }

 private:
  static constexpr Scale kMemory{24, 20, 5};  // 16 MiB to 16 TiB
  FastestByClass fastest_{kMemory.size()};
};

/// A grid over memory and time: how many layouts each cell has, and one of them. Which one is as
/// good as chance, so that a drawing shows no grid, and the same in any order.
class Cloud {
 public:
  void add(double memory_bytes, double seconds) {
    cells_[kMemory.place(memory_bytes) * kTime.size() + kTime.place(seconds)].add(
        {static_cast<float>(memory_bytes), static_cast<float>(seconds), 1});
  }
  void add(const Cloud& other) {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (other.cells_[i].layouts > 0) cells_[i].add(other.cells_[i]);
    }
  }
  std::vector<CloudPoint> points() const {
    std::vector<CloudPoint> all;
    for (const Cell& cell : cells_) {
      if (cell.layouts > 0) all.push_back({cell.memory, cell.seconds, cell.layouts});
    }
    return all;
  }

 private:
  struct Cell {
    float memory = 0, seconds = 0;
    std::uint32_t layouts = 0;

    void add(const Cell& other) {
      if (layouts == 0 || other.order() < order()) {
        memory = other.memory;
        seconds = other.seconds;
      }
      layouts += other.layouts;
    }
    std::uint64_t order() const {
      const auto bits = std::uint64_t{std::bit_cast<std::uint32_t>(memory)} << 32 |
                        std::bit_cast<std::uint32_t>(seconds);
      return (bits ^ bits >> 29) * 0x9E3779B97F4A7C15;
    }
  };
  static constexpr Scale kMemory{24, 20, 4}, kTime{-10, 24, 5};  // 1 ms to 4 hours
  std::vector<Cell> cells_ = std::vector<Cell>(kMemory.size() * kTime.size());
};

}  // namespace heddle::planner
