#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "comm/comm_op.h"
#include "parallel/step/step_calls.h"

namespace heddle::planner {

/// Calls and their payloads by size: bucket i has those of 2^i up to 2^(i+1) - 1 bytes; bucket 0
/// also empty ones.
struct MessageSizes {
  static constexpr int kBuckets = 48;
  struct Bucket {
    std::int64_t calls = 0, bytes = 0;
  };
  std::array<std::array<Bucket, kBuckets>, kCommOps> by_op{};

  static int bucket_of(std::int64_t bytes) {
    return bytes <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(bytes))) - 1;
  }
  void add(CommOp op, std::int64_t calls, std::int64_t bytes_each) {
    Bucket& bucket =
        by_op[static_cast<std::size_t>(op)][static_cast<std::size_t>(bucket_of(bytes_each))];
    bucket.calls += calls;
    bucket.bytes += calls * bytes_each;
  }
  bool is_empty() const {
    return std::ranges::all_of(by_op, [](const auto& buckets) {
      return std::ranges::all_of(buckets, [](const Bucket& bucket) { return bucket.calls == 0; });
    });
  }
  const Bucket& at(CommOp op, int bucket) const {
    return by_op[static_cast<std::size_t>(op)][static_cast<std::size_t>(bucket)];
  }
  MessageSizes& operator+=(const MessageSizes& other) {
    for (std::size_t op = 0; op < by_op.size(); ++op) {
      for (std::size_t i = 0; i < by_op[op].size(); ++i) {
        by_op[op][i].calls += other.by_op[op][i].calls;
        by_op[op][i].bytes += other.by_op[op][i].bytes;
      }
    }
    return *this;
  }
};

/// What one rank counts in a step, by group as the runtime's report names them.
struct TrafficBySize {
  MessageSizes tp, cp, dp, pp, copies, ends, lanes, ep, etp, edp;

  /// The sizes of the group that makes the call.
  MessageSizes& of(const StepCall& call) {
    if (call.on == StepCall::On::ends) return ends;
    if (call.on == StepCall::On::lanes) return lanes;
    if (call.axes.contains(Axis::tp)) return tp;
    if (call.axes.contains(Axis::copy)) return copies;
    if (call.axes == AxisSet{Axis::cp}) return cp;
    if (call.axes.contains(Axis::ep)) return ep;
    if (call.axes.contains(Axis::etp)) return etp;
    if (call.axes.contains(Axis::edp)) return edp;
    return call.axes.contains(Axis::pp) ? pp : dp;
  }

  /// Calls visit("tp", sizes) and so on.
  template <class Visit>
  void visit(const Visit& visit) const {
    visit("tp", tp);
    visit("cp", cp);
    visit("dp", dp);
    visit("pp", pp);
    visit("tp copies", copies);
    visit("pp ends", ends);
    visit("pp lanes", lanes);
    // Where experts are divided.
    if (!ep.is_empty()) visit("ep", ep);
    if (!etp.is_empty()) visit("etp", etp);
    if (!edp.is_empty()) visit("edp", edp);
  }
  TrafficBySize& operator+=(const TrafficBySize& other) {
    tp += other.tp;
    cp += other.cp;
    dp += other.dp;
    pp += other.pp;
    copies += other.copies;
    ends += other.ends;
    lanes += other.lanes;
    ep += other.ep;
    etp += other.etp;
    edp += other.edp;
    return *this;
  }
};

}  // namespace heddle::planner
