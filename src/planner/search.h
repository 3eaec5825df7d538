#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/cost.h"

namespace heddle::planner {

struct Found {
  Candidate candidate;
  TimeEstimate time;
  MemoryEstimate memory;
};

struct SearchOptions {
  int gpus = 1;
  double margin = 0.1;  ///< share of the device's memory that a plan leaves free
  int keep = 64;        ///< plans in `SearchResult::best`
  int threads = 1;
  /// Called from any thread with parts done and parts in all.
  std::function<void(std::uint64_t, std::uint64_t)> progress = {};
};

/// Layouts that are about equal in memory and time: one of them, and how many they are.
struct CloudPoint {
  double memory_bytes = 0, seconds = 0;
  std::uint64_t layouts = 0;
};

struct SearchResult {
  std::vector<Found> best;       ///< plans that fit, fastest first
  std::vector<Found> by_mesh;    ///< the fastest that fits for every (tp, cp, pp), fastest first
  std::vector<Found> too_large;  ///< faster than the fastest that fits, but too large: likewise
  Found smallest;                ///< the one that needs least memory
  /// Of all layouts, also those that do not fit: no other needs less memory and time. Ascending in
  /// memory, falling in time; of those that need the same memory within 3 % the fastest.
  std::vector<Found> front;
  std::vector<CloudPoint> cloud;  ///< all layouts, thinned
  std::uint64_t evaluated = 0;    ///< configurations whose time and memory were worked out
  std::uint64_t fitting = 0;
  double limit_bytes = 0;  ///< of the device's memory, less the margin
};

/// The most ranks that a sequence of the job is divided over.
int most_context(const Job& job);

/// Evaluates every layout of the job on `gpus` devices: tp, cp, pp, dp, ep, etp, schedule, chunks,
/// micro-batch, ZeRO, sequence, vocabulary and recomputation. Experts are divided over any ranks of
/// a stage that the model allows, those of etp in one server, and exchange as is fastest for
/// these. Ranks share sequences (cp) that are
/// long, or where nothing else fits; then a micro-batch is one sequence, since dp divides several,
/// and attention is shared by the method that compare_methods takes. The result does not depend on
/// the number of threads. Error(usage) when no layout exists (a batch that no number of replicas
/// divides).
SearchResult search(const Machine& machine, const Job& job, const SearchOptions& options);

}  // namespace heddle::planner
