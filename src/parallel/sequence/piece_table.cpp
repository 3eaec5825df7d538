#include "parallel/sequence/piece_table.h"

#include <algorithm>
#include <utility>

namespace heddle {
bool contains(HeadRange all, HeadRange some) {
  return some.first >= all.first && some.first + some.count <= all.first + all.count;
}

int PieceTable::add(PieceKind kind, const TokenRuns& tokens, HeadRange heads) {
  pieces_.push_back({.kind = kind, .tokens = tokens, .heads = heads});
  uses_.push_back({.round = rounds_});
  left_.push_back(0);
  return static_cast<int>(pieces_.size()) - 1;
}

PieceRows PieceTable::rows_in(int index, const TokenRun& run, HeadRange heads) const {
  const Piece& in = (*this)[index];
  if (!contains(in.heads, heads)) return {};
  const auto [row, count] = rows_of(run, in.tokens);
  return {index, row, count, {heads.first - in.heads.first, heads.count}};
}

PieceRows PieceTable::find(PieceKind kind, const TokenRun& run, HeadRange heads,
                           std::int64_t least) {
  const int held = ContextProgram::kOwn, all = static_cast<int>(pieces_.size());
  for (const auto& [begin, end] :
       {std::pair{0, held}, {first_foreign_, all}, {held, first_foreign_}}) {
    for (int index = begin; index < end; ++index) {
      const bool matches = (*this)[index].kind == kind && !is_gone(index);
      const PieceRows rows = matches ? rows_in(index, run, heads) : PieceRows{};
      if (rows.count < least) continue;
      use(index);
      return rows;
    }
  }
  return {};
}

std::vector<PieceRows> PieceTable::find_all(PieceKind kind, const TokenRuns& tokens,
                                            HeadRange heads) {
  std::vector<PieceRows> all;
  for (TokenRun run : tokens) {
    while (run.count > 0) {
      const PieceRows rows = find(kind, run, heads);
      if (rows.count == 0) return {};
      all.push_back(rows);
      run = {run.at(rows.count), run.count - rows.count, run.stride};
    }
  }
  return all;
}

void PieceTable::leave(const PieceRows& rows) {
  if (is_own(rows.piece)) return;
  left_[static_cast<std::size_t>(rows.piece)] += rows.count * rows.heads.count;
}

bool PieceTable::is_gone(int index) const {
  const std::int64_t left = left_[static_cast<std::size_t>(index)];
  const PieceRows all = all_of(index);
  return left > 0 && left == all.count * all.heads.count;
}

std::vector<Piece> PieceTable::finish(std::vector<ProgramRound>& rounds) {
  for (int index = first_foreign_; index < static_cast<int>(pieces_.size()); ++index) {
    const auto& [round, spends] = use_of(index);
    ProgramRound& last = rounds[static_cast<std::size_t>(round - 1)];
    (spends ? last.spent : last.ends).push_back(index);
  }
  return std::exchange(pieces_, {});
}

}  // namespace heddle
