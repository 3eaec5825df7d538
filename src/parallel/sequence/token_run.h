#pragma once

#include <cstdint>
#include <vector>

namespace heddle {

/// Positions first, first + stride, ... of a sequence.
struct TokenRun {
  std::int64_t first = 0, count = 0, stride = 1;

  std::int64_t at(std::int64_t index) const { return first + index * stride; }
  std::int64_t last() const { return at(count - 1); }  ///< of a run that is not empty
  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

/// Ascending, none of them empty.
using TokenRuns = std::vector<TokenRun>;

std::int64_t tokens_in(const TokenRuns& runs);

/// Adds a run at the end, joined with the last one where it goes on from it. An empty one adds
/// nothing.
void append(TokenRuns& runs, const TokenRun& more);
void append(TokenRuns& runs, const TokenRuns& more);

/// The tokens of all runs, which have neighbours only (stride 1), each once and ascending.
TokenRuns united(TokenRuns runs);

/// The tokens of `run` whose positions are from `begin` to before `end`; may be empty.
TokenRun within(const TokenRun& run, std::int64_t begin, std::int64_t end);

/// The tokens from the `begin`-th to before the `end`-th.
TokenRuns slice(const TokenRuns& runs, std::int64_t begin, std::int64_t end);

/// Which of `tokens`, counted from the first, is the run's first, and how many of the run lie there
/// as neighbours; none: 0.
struct NeighbouringRows {
  std::int64_t first = 0, count = 0;
};
NeighbouringRows rows_of(const TokenRun& run, const TokenRuns& tokens);

/// Whether all of `runs` are among `tokens`.
bool lies_in(const TokenRuns& runs, const TokenRuns& tokens);

/// How many of `keys` are not behind `position`: they are the first ones.
std::int64_t keys_up_to(std::int64_t position, const TokenRun& keys);

}  // namespace heddle
