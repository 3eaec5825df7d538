#pragma once

// A sequence on a GPU, and attention on blocks of it.

#include "ops/attention_block_testing.h"
#include "ops/cuda_testing.h"

namespace heddle::ops {

class CudaAttentionBlock : public OnGpu {
 protected:
  /// What the operation on whole sequences is held to, too.
  static double tolerance_of(DType dtype) { return dtype == DType::f32 ? 1e-5 : 2e-2; }

  /// Values that `dtype` can represent, as f64 on the host.
  static Sequence sequence(const SequenceSizes& sizes, DType dtype, double range = 1.5) {
    Sequence x(sizes, DType::f64, range);
    round(x, dtype);
    return x;
  }
  static void round(Sequence& x, DType dtype) {
    for (Tensor* t : {&x.q, &x.k, &x.v, &x.dout}) *t = round_trip(*t, dtype);
  }

  /// A sequence on the device: q, k and v in one tensor, and results, of which NaN is left where
  /// nobody writes.
  struct OnDevice {
    Tensor q, k, v, dout, first_key, delta;
    Results r;
  };
  OnDevice on_device(const Sequence& x, DType dtype) {
    const auto& [batch, length, heads, groups, width, documents, window] = x.sizes;
    const Tensor all = device_empty({batch, length, heads + 2 * groups, width}, dtype);
    OnDevice d{.q = all.slice(2, 0, heads),
               .k = all.slice(2, heads, heads + groups),
               .v = all.slice(2, heads + groups, heads + 2 * groups),
               .dout = up(x.dout, dtype),
               .first_key = x.first_key.defined() ? up(x.first_key) : Tensor(),
               .delta = device_unwritten({batch, heads, length}, DType::f32),
               .r = {.out = device_unwritten(x.q.shape(), DType::f32),
                     .lse = device_unwritten({batch, heads, length}, DType::f32),
                     .dq = device_empty(x.q.shape(), DType::f32),
                     .dk = device_empty(x.k.shape(), DType::f32),
                     .dv = device_empty(x.k.shape(), DType::f32)}};
    copy(up(x.q, dtype), d.q, gpu());
    copy(up(x.k, dtype), d.k, gpu());
    copy(up(x.v, dtype), d.v, gpu());
    for (const Tensor* t : {&d.r.dq, &d.r.dk, &d.r.dv}) fill(*t, 0.0, gpu());
    return d;
  }
  static AttentionMask mask(const OnDevice& d, std::int64_t begin, std::int64_t end,
                            std::int64_t key_begin) {
    AttentionMask result{.query_offset = begin, .first_key_BS = {}, .key_offset = key_begin};
    if (d.first_key.defined()) result.first_key_BS = d.first_key.slice(1, begin, end);
    return result;
  }
  struct Block {
    std::int64_t begin, end, key_begin, key_end;
  };
  void forward(const OnDevice& d, double scale, const Block& x, KeyBlock block) {
    attention_block_forward(
        d.q.slice(1, x.begin, x.end), d.k.slice(1, x.key_begin, x.key_end),
        d.v.slice(1, x.key_begin, x.key_end), mask(d, x.begin, x.end, x.key_begin), scale, block,
        d.r.out.slice(1, x.begin, x.end), d.r.lse.slice(2, x.begin, x.end), gpu());
  }
  void backward(const OnDevice& d, double scale, const Block& x) {
    const auto queries = [&](const Tensor& t) { return t.slice(1, x.begin, x.end); };
    const auto keys = [&](const Tensor& t) { return t.slice(1, x.key_begin, x.key_end); };
    attention_block_backward(queries(d.dout), queries(d.q), keys(d.k), keys(d.v),
                             d.r.lse.slice(2, x.begin, x.end), d.delta.slice(2, x.begin, x.end),
                             mask(d, x.begin, x.end, x.key_begin), scale, queries(d.r.dq),
                             keys(d.r.dk), keys(d.r.dv), gpu());
  }
  /// Forward and backward block by block. Every pair is computed, also those that see nothing.
  Results by_blocks(const Sequence& x, DType dtype, const Cut& queries, const Cut& keys,
                    std::uint64_t seed) {
    const OnDevice d = on_device(x, dtype);
    std::vector<bool> has_begun(queries.size(), false);
    const auto block = [&](const Pair& at) {
      return Block{queries[at.query], queries[at.query + 1], keys[at.key], keys[at.key + 1]};
    };
    for (const Pair& at : shuffled_pairs(queries, keys, seed)) {
      forward(d, x.scale, block(at), has_begun[at.query] ? KeyBlock::further : KeyBlock::first);
      has_begun[at.query] = true;
    }
    attention_delta(d.dout, d.r.out, d.delta, gpu());
    for (const Pair& at : shuffled_pairs(queries, keys, seed + 1)) backward(d, x.scale, block(at));
    return from_device(d.r);
  }
  /// Forward and backward of stretches `rank` and `rank` + 2 of a cut, as queries of one call.
  void jump(const OnDevice& d, double scale, const Cut& cut, std::size_t rank) {
    const std::int64_t begin = cut[rank], end = cut[rank + 1];
    const std::int64_t next = cut[rank + 2], last = cut[rank + 3];
    const std::int64_t first = end - begin, count = first + last - next;
    const auto moved = [&](const Tensor& all, const Tensor& own, int dim, bool is_back) {
      const auto move = [&](const Tensor& from, const Tensor& to) {
        is_back ? copy(to, from, gpu()) : copy(from, to, gpu());
      };
      move(all.slice(dim, begin, end), own.slice(dim, 0, first));
      move(all.slice(dim, next, last), own.slice(dim, first, count));
    };
    const auto rows = [&](const Tensor& like) {
      return device_unwritten({like.size(0), count, like.size(2), like.size(3)}, like.dtype());
    };
    const auto statistics = [&] {
      return device_unwritten({d.q.size(0), d.q.size(2), count}, DType::f32);
    };
    const Tensor q = rows(d.q), dout = rows(d.dout), out = rows(d.r.out), dq = rows(d.r.dq);
    const Tensor lse = statistics(), delta = statistics();
    moved(d.q, q, 1, false);
    moved(d.dout, dout, 1, false);
    fill(dq, 0.0, gpu());
    const auto for_keys = [&](const auto& body) {
      for (const Cut& keys : {Cut{0, cut[1] + 3}, Cut{cut[1] + 3, last}}) {
        const AttentionMask mask{.query_offset = begin,
                                 .first_key_BS = {},
                                 .key_offset = keys[0],
                                 .jump = next - end,
                                 .jump_at = first};
        body(mask, [&](const Tensor& t) { return t.slice(1, keys[0], keys[1]); });
      }
    };
    for_keys([&](const AttentionMask& mask, const auto& part) {
      attention_block_forward(q, part(d.k), part(d.v), mask, scale,
                              mask.key_offset == 0 ? KeyBlock::first : KeyBlock::further, out, lse,
                              gpu());
    });
    attention_delta(dout, out, delta, gpu());
    for_keys([&](const AttentionMask& mask, const auto& part) {
      attention_block_backward(dout, q, part(d.k), part(d.v), lse, delta, mask, scale, dq,
                               part(d.r.dk), part(d.r.dv), gpu());
    });
    moved(d.r.out, out, 1, true);
    moved(d.r.dq, dq, 1, true);
    moved(d.r.lse, lse, 2, true);
  }
  Results from_device(const Results& r) {
    return {down(r.out), down(r.lse), down(r.dq), down(r.dk), down(r.dv)};
  }
  /// By the operation on whole sequences, on the GPU.
  Results whole(const Sequence& x, DType dtype) {
    const OnDevice d = on_device(x, dtype);
    const auto result = [&](const Tensor& like) { return device_unwritten(like.shape(), dtype); };
    const Results r{result(d.q), d.r.lse, result(d.q), result(d.k), result(d.k)};
    const AttentionMask all{.query_offset = 0, .first_key_BS = d.first_key};
    attention_forward(d.q, d.k, d.v, all, x.scale, r.out, r.lse, gpu());
    attention_backward(d.dout, d.q, d.k, d.v, r.out, r.lse, all, x.scale, r.dq, r.dk, r.dv, d.delta,
                       gpu());
    return from_device(r);
  }
  static void expect_near(const Results& want, const Results& got, double tolerance) {
    ops::expect_near(want, got, tolerance);
  }
  /// NaN is larger than all.
  static double largest_of(const Tensor& t) {
    double largest = 0;
    for (const double value : values(t)) {
      largest = std::max(largest, std::isnan(value) ? kInfinity : std::abs(value));
    }
    return largest;
  }
  template <class Body>
  void in_both_orders_of_sums(const Body& body) {
    for (const bool is_deterministic : {true, false}) {
      SCOPED_TRACE(is_deterministic ? "sums in order" : "sums in any order");
      gpu().set_deterministic(is_deterministic);
      body();
    }
  }
};

}  // namespace heddle::ops
