#pragma once

// Device code only: how Hopper's attention forward is cut into pieces, and the warp that starts the
// copies for them.

#include <climits>

#include "ops/cuda/attention_caps.h"
#include "ops/cuda/attention_problem.h"
#include "ops/cuda/hopper_tiles.h"

namespace heddle::ops::cuda::hopper {

// A warpgroup has 64 queries of a head. Warpgroups whose queries read the same keys are a piece of
// work: neighbouring heads of a group, then earlier queries. Thread blocks, one per processor, take
// pieces, the longest first, until none is left. In a block one more warp starts the copies:
// queries, and tiles of keys and values that all warpgroups pass by, some of which lie ready at any
// time, also for the next piece. A warpgroup starts the products of the next scores, then those of
// the last weights and values, and makes weights of the former while the latter are made; the other
// warpgroups fill what is left of both.

inline constexpr int kRows = 64;       // queries of a warpgroup
inline constexpr int kTileKeys = 128;  // keys of a tile

/// Without kAnyMask 64 queries that begin at a multiple of 64 see all of their tiles of keys but
/// the last. With kIsBlock some of them may see no key, and results are merged. With kCaps scores
/// have a cap.
template <int kWidth_, bool kAnyMask_, bool kIsBlock_, bool kCaps_ = false>
struct ForwardShape {
  static constexpr int kWidth = kWidth_, kKeys = kTileKeys;
  static constexpr bool kAnyMask = kAnyMask_, kIsBlock = kIsBlock_, kCaps = kCaps_;
  /// Tiles begin at multiples of 64 that follow first keys: fewer of them. With wide heads that is
  /// slower (docs/design/053-windows-caps-and-angles.md).
  static constexpr bool kHasPhase = kAnyMask && kWidth == 64;
  /// The first scores of a piece are made beside the last products of the one before.
  static constexpr bool kStartsAhead = kAnyMask && !kIsBlock;
  /// Warpgroups start the products of a tile one after the other, so that the first has its scores
  /// early and makes exponentials while the others' products go on. With narrow heads slower, and
  /// no different where tiles have no mask.
  static constexpr bool kTakesTurns = kStartsAhead && kWidth == 128;
  static constexpr int kGroups = kWidth == 64 ? 3 : 2, kStages = kWidth == 64 ? 5 : 2;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kRegisters = kWidth == 64 ? 160 : 240;
  static constexpr int kCopyRegisters = kWidth == 64 ? 32 : 24;
  // A block begins with the same number for all threads; warps wait for ever for what is not there.
  static_assert(128 * (kGroups * kRegisters + kCopyRegisters) <=
                65536 / kThreads / 8 * 8 * kThreads);
  static constexpr int kQueryBytes = kRows * kWidth * 2, kTileBytes = kKeys * kWidth * 2;
  static constexpr int kBytes = 2 * kGroups * kQueryBytes + 2 * kStages * kTileBytes + 2048;
};

template <bool kIsBlock>
struct ForwardWork {
  CUtensorMap q, k, v, out;  // out of whole sequences
  HeadView<float> sums;      // out of blocks
  bool merges;               // sums and lse hold results over other keys
  Sight<kIsBlock> problem;
  int pairs;     // of batch and group of heads
  int together;  // pairs whose pieces are taken by length, whoever's they are
  // Of blocks: the first pieces of a pair, which are for all warpgroups, and how many have work in
  // the others.
  int full_pieces, last_groups;
  float scale;       // of scores, or what caps make of them, to powers of 2
  float cap_factor;  // of multiply_all()
  StatisticsView<float> lse;
  int* counter;
  SmallCap small_cap;
};

/// What the warpgroups do next.
template <int kGroups>
struct ForwardPiece {
  int b;           // < 0: nothing more
  int begin, end;  // tiles of keys that pass by
  int phase;       // the key that tile 0 begins with, where tiles follow the first keys: 0 or 64
  int h[kGroups];  // < 0: nothing for this one
  int query0[kGroups];
  int first[kGroups], behind[kGroups];  // tiles it sees; of blocks there may be none
};

template <class S>
struct ForwardMemory {
  std::uint32_t base;  // in shared memory: half of a pointer's registers

  __device__ explicit ForwardMemory(const unsigned char* raw)
      : base((shared_address(raw) + 1023) / 1024 * 1024) {}
  __device__ unsigned char* at(int offset) const {
    return static_cast<unsigned char*>(__cvta_shared_to_generic(base + offset));
  }
  __device__ unsigned char* q(int buffer, int group) const {
    return at((buffer * S::kGroups + group) * S::kQueryBytes);
  }
  __device__ unsigned char* k(int stage) const {
    return at(2 * S::kGroups * S::kQueryBytes + stage * S::kTileBytes);
  }
  __device__ unsigned char* v(int stage) const { return k(S::kStages + stage); }
  __device__ std::uint64_t* barrier(int i) const {
    return reinterpret_cast<std::uint64_t*>(k(2 * S::kStages)) + i;
  }
  __device__ std::uint64_t* k_full(int stage) const { return barrier(stage); }
  __device__ std::uint64_t* k_empty(int stage) const { return barrier(S::kStages + stage); }
  __device__ std::uint64_t* v_full(int stage) const { return barrier(2 * S::kStages + stage); }
  __device__ std::uint64_t* v_empty(int stage) const { return barrier(3 * S::kStages + stage); }
  __device__ std::uint64_t* q_full(int buffer) const { return barrier(4 * S::kStages + buffer); }
  __device__ std::uint64_t* q_empty(int buffer) const {
    return barrier(4 * S::kStages + 2 + buffer);
  }
  __device__ ForwardPiece<S::kGroups>& piece(int buffer) const {
    return reinterpret_cast<ForwardPiece<S::kGroups>*>(barrier(4 * S::kStages + 4))[buffer];
  }

  __device__ void init() const {
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(k_full(i), 1);
      init_barrier(v_full(i), 1);
      init_barrier(k_empty(i), 128 * S::kGroups);
      init_barrier(v_empty(i), 128 * S::kGroups);
    }
    for (int i = 0; i < 2; ++i) {
      init_barrier(q_full(i), S::kGroups);  // lanes that write the piece
      init_barrier(q_empty(i), 128 * S::kGroups);
    }
    fence_barrier_init();
  }
};

/// The warp that starts copies.
template <class S>
class ForwardCopies {
 public:
  __device__ ForwardCopies(const ForwardWork<S::kIsBlock>& work, const ForwardMemory<S>& memory)
      : work_(work),
        memory_(memory),
        lane_(lane_id()),
        per_group_(work.problem.heads / work.problem.groups),
        row_blocks_((static_cast<int>(work.problem.queries) + kRows - 1) / kRows) {}

  __device__ void run() {
    const int units = row_blocks_ * per_group_;
    const int full = S::kIsBlock ? work_.full_pieces : 0;
    const int groups = S::kIsBlock ? work_.last_groups : S::kGroups;
    const int per_pair = full + (units - full * S::kGroups + groups - 1) / groups;
    const int count = per_pair * work_.pairs;
    int next = take();
    for (int turn = 0;; ++turn) {
      const int number = next, buffer = turn & 1;
      if (number >= count) {
        wait_for(memory_.q_empty(buffer), (turn >> 1 & 1) ^ 1);
        if (lane_ == 0) memory_.piece(buffer).b = -1;
        if (lane_ < S::kGroups) arrive(memory_.q_full(buffer));
        break;
      }
      next = take();
      const int before = number / (work_.together * per_pair) * work_.together;
      const int pairs = min(work_.together, work_.pairs - before);
      const int within = number - before * per_pair;
      const int piece = within / pairs, unit0 = full * S::kGroups + (piece - full) * groups;
      if (S::kIsBlock && piece < full) {
        start(before + within % pairs, piece * S::kGroups, units, turn);
      } else {
        start(before + within % pairs, unit0, min(unit0 + groups, units), turn);
      }
    }
    leave();
  }

 private:
  __device__ int take() const {
    int number = 0;
    if (lane_ == 0) number = atomicAdd(work_.counter, 1);
    return __shfl_sync(0xffffffffU, number, 0);
  }

  /// Lane i finds out what warpgroup i does; the first starts the copies.
  __device__ void start(int pair, int unit0, int end_unit, int turn) {
    const auto& p = work_.problem;
    const int b = pair / p.groups, g = pair % p.groups, buffer = turn & 1;
    const int unit = unit0 + lane_;
    const bool exists = lane_ < S::kGroups && unit < end_unit;
    const int query0 = (row_blocks_ - 1 - unit / per_group_) * kRows;
    const int h = g * per_group_ + unit % per_group_;
    int first_key = 0, keys = 0;
    if (exists) {
      const int last = min(query0 + kRows, static_cast<int>(p.queries)) - 1;
      keys = static_cast<int>(p.last_of(last)) + 1;
      if constexpr (S::kAnyMask) first_key = static_cast<int>(p.first_of(b, query0));
    }
    int phase = 0;
    if constexpr (S::kHasPhase) {
      phase = __reduce_min_sync(0xffffffffU, exists ? first_key : INT_MAX) & (S::kKeys / 2);
    }
    const int first = (first_key - phase) / S::kKeys;
    const int behind = (max(keys - phase, 0) + S::kKeys - 1) / S::kKeys;
    const bool sees_any = exists && (!S::kIsBlock || first < behind);
    const int end = __reduce_max_sync(0xffffffffU, sees_any ? behind : 0);
    int begin = __reduce_min_sync(0xffffffffU, sees_any ? first : INT_MAX);
    if constexpr (S::kIsBlock) begin = min(begin, end);
    const int present = __popc(__ballot_sync(0xffffffffU, exists));
    wait_for(memory_.q_empty(buffer), (turn >> 1 & 1) ^ 1);
    ForwardPiece<S::kGroups>& piece = memory_.piece(buffer);
    if (lane_ < S::kGroups) {
      piece.h[lane_] = exists ? h : -1;
      piece.query0[lane_] = query0;
      piece.first[lane_] = sees_any ? first : end;
      piece.behind[lane_] = sees_any ? behind : end;
    }
    if (lane_ == 0) {
      piece.b = b;
      piece.begin = begin;
      piece.end = end;
      piece.phase = phase;
    }
    if (lane_ == 0) {
      arrive_and_expect(memory_.q_full(buffer), present * S::kQueryBytes);
    } else if (lane_ < S::kGroups) {
      arrive(memory_.q_full(buffer));
    }
    __syncwarp();
    if (exists) {
#pragma unroll
      for (int c = 0; c < S::kWidth / 64; ++c) {
        start_box(memory_.q(buffer, lane_) + c * kRows * 128, work_.q, memory_.q_full(buffer),
                  64 * c, h, query0, b);
      }
    }
    if (lane_ == 0) start_tiles(b, g, begin * S::kKeys + phase, end * S::kKeys + phase);
  }

  __device__ void start_tiles(int b, int g, int begin, int end) {
    for (int key0 = begin; key0 < end; key0 += S::kKeys, ring_.advance()) {
      start_tile(memory_.k(ring_.index), work_.k, memory_.k_full(ring_.index),
                 memory_.k_empty(ring_.index), key0, b, g);
      start_tile(memory_.v(ring_.index), work_.v, memory_.v_full(ring_.index),
                 memory_.v_empty(ring_.index), key0, b, g);
    }
  }
  __device__ void start_tile(unsigned char* to, const CUtensorMap& from, std::uint64_t* full,
                             std::uint64_t* empty, int key0, int b, int g) const {
    wait_for(empty, ring_.parity ^ 1);
    arrive_and_expect(full, S::kTileBytes);
#pragma unroll
    for (int c = 0; c < S::kWidth / 64; ++c) {
      start_box(to + c * S::kKeys * 128, from, full, 64 * c, g, key0, b);
    }
  }

  /// The last block leaves the counter as it was found.
  __device__ void leave() const {
    if (lane_ == 0 && atomicAdd(work_.counter + 1, 1) == static_cast<int>(gridDim.x) - 1) {
      work_.counter[0] = 0;
      work_.counter[1] = 0;
    }
  }

  const ForwardWork<S::kIsBlock>& work_;
  const ForwardMemory<S>& memory_;
  int lane_, per_group_, row_blocks_;
  Turn<S::kStages> ring_;
};

}  // namespace heddle::ops::cuda::hopper
