#include "parallel/sequence/token_run.h"

#include <algorithm>

#include "base/check.h"

namespace heddle {

std::int64_t tokens_in(const TokenRuns& runs) {
  std::int64_t tokens = 0;
  for (const TokenRun& run : runs) tokens += run.count;
  return tokens;
}

void append(TokenRuns& runs, const TokenRun& more) {
  if (more.count == 0) return;
  if (!runs.empty() && runs.back().stride == more.stride &&
      runs.back().at(runs.back().count) == more.first) {
    runs.back().count += more.count;
  } else {
    runs.push_back(more);
  }
}

void append(TokenRuns& runs, const TokenRuns& more) {
  for (const TokenRun& run : more) append(runs, run);
}

TokenRuns united(TokenRuns runs) {
  std::ranges::sort(runs, {}, &TokenRun::first);
  TokenRuns all;
  for (const TokenRun& run : runs) {
    HEDDLE_CHECK(run.stride == 1, "a run of stride {} united with others", run.stride);
    if (all.empty() || run.first > all.back().last() + 1) {
      append(all, run);
    } else {
      all.back().count = std::max(all.back().last(), run.last()) + 1 - all.back().first;
    }
  }
  return all;
}

TokenRun within(const TokenRun& run, std::int64_t begin, std::int64_t end) {
  const std::int64_t skipped = keys_up_to(begin - 1, run), until = keys_up_to(end - 1, run);
  return {run.at(skipped), std::max<std::int64_t>(0, until - skipped), run.stride};
}

TokenRuns slice(const TokenRuns& runs, std::int64_t begin, std::int64_t end) {
  TokenRuns sliced;
  std::int64_t passed = 0;
  for (const TokenRun& run : runs) {
    const std::int64_t from = std::clamp<std::int64_t>(begin - passed, 0, run.count);
    const std::int64_t to = std::clamp<std::int64_t>(end - passed, 0, run.count);
    append(sliced, TokenRun{run.at(from), to - from, run.stride});
    passed += run.count;
  }
  return sliced;
}

NeighbouringRows rows_of(const TokenRun& run, const TokenRuns& tokens) {
  std::int64_t row = 0;
  for (const TokenRun& own : tokens) {
    const std::int64_t from = run.first - own.first;
    if (from >= 0 && run.first <= own.last() && from % own.stride == 0) {
      const std::int64_t at = from / own.stride;
      const bool goes_on = run.stride == own.stride;
      return {row + at, goes_on ? std::min(run.count, own.count - at) : 1};
    }
    row += own.count;
  }
  return {};
}

bool lies_in(const TokenRuns& runs, const TokenRuns& tokens) {
  return std::ranges::all_of(runs, [&](TokenRun run) {
    while (run.count > 0) {
      const std::int64_t count = rows_of(run, tokens).count;
      if (count == 0) return false;
      run = {run.at(count), run.count - count, run.stride};
    }
    return true;
  });
}

std::int64_t keys_up_to(std::int64_t position, const TokenRun& keys) {
  if (position < keys.first) return 0;
  return std::min(keys.count, (position - keys.first) / keys.stride + 1);
}

}  // namespace heddle
