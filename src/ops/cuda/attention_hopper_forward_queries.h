#pragma once

// Device code only: what a warpgroup does with a piece of Hopper's attention forward.

#include "ops/cuda/attention_hopper_forward_results.h"

namespace heddle::ops::cuda::hopper {

/// A warpgroup's queries meet the tiles of keys that they see, piece by piece.
template <class S>
class Rows : PieceRows<S> {
 public:
  __device__ __forceinline__ Rows(const ForwardWork<S::kIsBlock>& work,
                                  const ForwardMemory<S>& memory, int group)
      : Base(work, memory, group) {
    if (group + 1 == S::kGroups) end_turn();  // the first one's
  }

  /// All of its pieces.
  __device__ __forceinline__ void meet_all() {
    if constexpr (S::kStartsAhead) {
      if (!find(0)) return;
      float scores[kScores];
      make_first(scores);
      while (meet_tiles(scores, [&](auto keys) { return go_on<decltype(keys)::value>(scores); })) {
      }
    } else {
      for (bool is_more = find(0); is_more; is_more = find_next()) {
        float scores[kScores];
        make_first(scores);
        meet_tiles(scores, [&](auto keys) { last_products<decltype(keys)::value>(); });
        store();
      }
    }
  }

 private:
  using Base = PieceRows<S>;
  using Base::all_begun_, Base::first_key_, Base::first_key_of, Base::first_keys_of, Base::group_;
  using Base::has_large_, Base::last_of, Base::load_old, Base::memory_, Base::out_, Base::piece;
  using Base::query0_, Base::row_, Base::softmax_, Base::store, Base::store_sums, Base::take_rows;
  using Base::turn_, Base::work_;
  using typename Base::FirstKeys;
  static constexpr int kScores = S::kKeys / 2;

  // For kTakesTurns: around the start of a tile's products, as often in each warpgroup.
  __device__ __forceinline__ void take_turn() const {
    if constexpr (S::kTakesTurns) sync_threads(1 + S::kGroups + group_, 256);
  }
  __device__ __forceinline__ void end_turn() const {
    if constexpr (S::kTakesTurns) {
      arrive_at(1 + S::kGroups + (group_ + 1 == S::kGroups ? 0 : group_ + 1), 256);
    }
  }
  __device__ void pass_by(int begin, int end) {
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile, ring_.advance()) {
      take_turn();
      end_turn();
      wait_for(memory_.k_full(ring_.index), ring_.parity);
      arrive(memory_.k_empty(ring_.index));
      wait_for(memory_.v_full(ring_.index), ring_.parity);
      arrive(memory_.v_empty(ring_.index));
    }
  }
  /// The last piece's rows have left its buffer, and this thread has read all it needs of the
  /// piece: both may be overwritten.
  __device__ void release_last() const {
    if (turn_ == 0) return;
    if (threadIdx.x % 128 == 0) wait_for_stores<0>();
    arrive(memory_.q_empty(~turn_ & 1));
  }
  /// Whether a next piece is there that begins with the tile after this one's last. Else other
  /// tiles come between, and this one's have to be let go first.
  __device__ __forceinline__ bool is_next_at_once() const {
    const int turn = turn_ + 1;
    if (uniform(piece().behind[group_]) != uniform(piece().end)) return false;
    wait_for(memory_.q_full(turn & 1), turn >> 1 & 1);
    const ForwardPiece<S::kGroups>& next = memory_.piece(turn & 1);
    return uniform(next.b) >= 0 && uniform(next.h[group_]) >= 0 &&
           uniform(next.first[group_]) == uniform(next.begin);
  }

  /// Goes on to the first piece from `turn` on in which this warpgroup sees keys. Returns whether
  /// there is one. Of the pieces before, all but the last have been released.
  __device__ __forceinline__ bool find(int turn) {
    for (;; ++turn) {
      turn_ = turn;
      wait_for(memory_.q_full(turn & 1), turn >> 1 & 1);
      // Read where it is needed: registers are short. Addresses that the compiler knows to be the
      // same for a warp take none.
      if (uniform(piece().b) < 0) return false;
      const int begin = uniform(piece().begin), first = uniform(piece().first[group_]);
      pass_by(begin, first);
      const bool has_rows = uniform(piece().h[group_]) >= 0;
      if (has_rows) take_rows(first_keys_of(piece()));
      if (has_rows && (!S::kIsBlock || first < uniform(piece().behind[group_]))) return true;
      release_last();
      if (S::kIsBlock && has_rows) {
        load_old();
        store_sums();
      }
      pass_by(uniform(piece().behind[group_]), uniform(piece().end));
    }
  }
  __device__ __forceinline__ bool find_next() {
    pass_by(uniform(piece().behind[group_]), uniform(piece().end));
    return find(turn_ + 1);
  }

  __device__ __forceinline__ void start_first(float (&scores)[kScores], int turn) const {
    wait_for(memory_.k_full(ring_.index), ring_.parity);
    begin_products();
    start_scores(scores, turn);
  }
  __device__ __forceinline__ void make_first(float (&scores)[kScores]) const {
    take_turn();
    start_first(scores, turn_);
    end_turn();
    wait_for_products<0>();
    settle(scores);
    arrive(memory_.k_empty(ring_.index));
  }

  /// Meets the tiles that the queries see, the first one with its scores. What is left are the
  /// products of the last weights, of as many keys as `end` is told.
  template <class End>
  __device__ __forceinline__ auto meet_tiles(float (&scores)[kScores], const End& end) {
    int key0 = first_key_of(uniform(piece().first[group_]));
    const int behind = first_key_of(uniform(piece().behind[group_]));
    if constexpr (S::kCaps) has_large_ = !are_all_small(scores, work_.small_cap);
    cap(scores);
    if (S::kAnyMask || key0 + S::kKeys >= behind) hide(scores, key0);
    softmax_.take_largest(scores, work_.scale);
    softmax_.add(scores, work_.scale);
    round_to_weights(scores, weights_);
    release_last();
    key0 += S::kKeys;
    // Of the last tile only the first half may be seen.
    const bool is_half = key0 < behind && last_of(query0_ + kRows - 1) < behind - S::kKeys / 2;
    const int whole_end = behind - (!S::kAnyMask || is_half ? S::kKeys : 0);
#pragma unroll 1
    for (; key0 < whole_end; key0 += S::kKeys) {
      if (!S::kAnyMask || is_open(key0)) {
        meet<kScores, false>(key0);
      } else {
        meet<kScores, true>(key0);
      }
    }
    if (is_half) {
      meet<kScores / 2, true>(key0);
      return end(std::integral_constant<int, S::kKeys / 2>{});
    }
    if (!S::kAnyMask && key0 < behind) meet<kScores, true>(key0);
    return end(std::integral_constant<int, S::kKeys>{});
  }

  /// Of the first kKeys keys.
  template <int kKeys>
  __device__ __forceinline__ void last_products() {
    wait_for(memory_.v_full(ring_.index), ring_.parity);
    begin_products();
    start_out<kKeys>(ring_.index);
    if constexpr (S::kIsBlock) load_old();
    wait_for_products<0>();
    settle(out_);
    arrive(memory_.v_empty(ring_.index));
    ring_.advance();
  }
  /// The same, and stores the rows; what can be made meanwhile are the first scores of the next
  /// piece. Returns whether there is one.
  template <int kKeys>
  __device__ __forceinline__ bool go_on(float (&scores)[kScores]) {
    if (!is_next_at_once()) {
      last_products<kKeys>();
      store();
      if (!find_next()) return false;
      make_first(scores);
      return true;
    }
    const Turn<S::kStages> last = ring_;
    ring_.advance();
    wait_for(memory_.v_full(last.index), last.parity);
    take_turn();
    begin_products();
    start_out<kKeys>(last.index);
    start_first(scores, turn_ + 1);
    end_turn();
    const FirstKeys next = first_keys_of(memory_.piece(~turn_ & 1));  // on their way
    wait_for_products<1>();
    settle(out_);
    arrive(memory_.v_empty(last.index));
    store();
    wait_for_products<0>();
    settle(scores);
    arrive(memory_.k_empty(ring_.index));
    ++turn_;
    take_rows(next);
    return true;
  }

  template <int kN>
  __device__ __forceinline__ void start_scores(float (&scores)[kN], int turn) const {
    const std::uint32_t q = low_half(along_sum(memory_.q(turn & 1, group_)));
    const std::uint32_t k = low_half(along_sum(memory_.k(ring_.index)));
#pragma unroll
    for (int i = 0; i < S::kWidth / 16; ++i) {
      const std::uint32_t step = i % 4 * kNextInRow;
      multiply_add(scores, from_low_half(q + i / 4 * (kRows * 128 >> 4) + step),
                   from_low_half(k + i / 4 * (S::kKeys * 128 >> 4) + step), i > 0);
    }
    end_product_group();
  }
  /// Of the first kKeys keys.
  template <int kKeys>
  __device__ __forceinline__ void start_out(int stage) {
    const std::uint32_t v = low_half(across_sum(memory_.v(stage), S::kKeys * 128));
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      multiply_add<1>(out_, weights_[i], from_low_half(v + i * kNextRows), true);
    }
    end_product_group();
  }

  template <int kN>
  __device__ __forceinline__ void cap(float (&scores)[kN]) const {
    if constexpr (S::kCaps) bend(scores, multiply_all(scores, work_.cap_factor));
  }

  /// Whether all rows see all keys of the tile from `key0` on, and have seen some before.
  __device__ __forceinline__ bool is_open(int key0) const {
    return key0 > all_begun_ && key0 + S::kKeys - 1 <= last_of(query0_);
  }
  /// Whether some row's first key comes in this tile or later: it has nothing to compare with yet.
  __device__ __forceinline__ bool some_begin(int key0) const {
    return S::kAnyMask && key0 <= all_begun_;
  }
  template <int kN>
  __device__ __forceinline__ void hide(float (&scores)[kN], int key0) const {
    const int own = key0 + lane_id() % 4 * 2;
    if (key0 + S::kKeys - 1 > last_of(query0_)) {
      const int last[2] = {last_of(row_) - own, last_of(row_ + 8) - own};
      hide_behind(scores, last);
    }
    if (S::kAnyMask && key0 < all_begun_) {
      const int first[2] = {first_key_[0] - own, first_key_[1] - own};
      if (all_begun_ - key0 <= S::kKeys / 2) {
        hide_before<kScores / 2>(scores, first);
      } else {
        hide_before<kN>(scores, first);
      }
    }
  }

  /// Whether add() takes scores as products leave them.
  template <bool kMayHide>
  __device__ __forceinline__ bool are_taken_small() const {
    return S::kCaps && !kMayHide && !has_large_;
  }
  /// Makes exponentials of scores; returns whether that was wrong.
  template <bool kMayHide, int kN>
  __device__ __forceinline__ bool add(float (&scores)[kN]) {
    bool is_wrong = false;
    if (are_taken_small<kMayHide>()) {
      is_wrong = !work_.small_cap.holds(softmax_.add_small(scores, work_.small_cap));
    } else {
      softmax_.add(scores, work_.scale);
    }
    return __any_sync(0xffffffffU, is_wrong || softmax_.are_sums_too_large());
  }

  /// Starts the products of its scores, and those of the last weights; makes its weights. kN: how
  /// many scores of the tile are wanted. Without kMayHide it is one that is_open().
  template <int kN, bool kMayHide>
  __device__ __forceinline__ void meet(int key0) {
    float scores[kN];
    const Turn<S::kStages> before = ring_;
    ring_.advance();
    wait_for(memory_.k_full(ring_.index), ring_.parity);
    wait_for(memory_.v_full(before.index), before.parity);
    take_turn();
    begin_products();
    start_scores(scores, turn_);
    start_out<S::kKeys>(before.index);
    end_turn();
    wait_for_products<1>();
    settle(scores);
    const bool is_scaled = kMayHide && some_begin(key0);
    if (!are_taken_small<kMayHide>()) cap(scores);
    if constexpr (kMayHide) hide(scores, key0);
    if (is_scaled) softmax_.take_largest(scores, work_.scale);
    const float sum[2] = {softmax_.sum[0], softmax_.sum[1]};
    // The wait stands behind the branch because in front of it the compiler moves it to before the
    // exponentials, which are to be made meanwhile.
    if (add<kMayHide>(scores)) {
      wait_for_products<0>();
      settle(out_);
      if (is_scaled) scale_out();
      make_scores_again<S::kWidth, S::kKeys>(scores, memory_.q(turn_ & 1, group_),
                                             memory_.k(ring_.index));
      cap(scores);
      if constexpr (kMayHide) hide(scores, key0);
      softmax_.sum[0] = sum[0];
      softmax_.sum[1] = sum[1];
      softmax_.take_largest(scores, work_.scale);
      softmax_.add(scores, work_.scale);
      scale_out();
      has_large_ = true;
    } else {
      wait_for_products<0>();
      settle(out_);
      if (is_scaled) scale_out();
    }
    arrive(memory_.v_empty(before.index));
    arrive(memory_.k_empty(ring_.index));
    round_to_weights(scores, weights_);
  }
  __device__ __forceinline__ void scale_out() {
#pragma unroll
    for (int i = 0; i < S::kWidth / 2; ++i) out_[i] *= softmax_.factor[i / 2 % 2];
  }

  Turn<S::kStages> ring_;
  std::uint32_t weights_[S::kKeys / 16][4];
};

}  // namespace heddle::ops::cuda::hopper
