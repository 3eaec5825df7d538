#pragma once

#include "parallel/sequence/context_program.h"

namespace heddle {

bool contains(HeadRange all, HeadRange some);

/// The pieces of a program while it is made: which rows of tokens they have, and how long they are
/// needed.
class PieceTable {
 public:
  /// Pieces that are added from now on are not the rank's own.
  void end_own() { first_foreign_ = static_cast<int>(pieces_.size()); }
  void begin_round() { ++rounds_; }

  int add(PieceKind kind, const TokenRuns& tokens, HeadRange heads);
  const Piece& operator[](int index) const { return pieces_[static_cast<std::size_t>(index)]; }
  bool is_own(int index) const { return index < first_foreign_; }

  /// As much of the run as the piece has in a row; of no tokens where it has none.
  PieceRows rows_in(int index, const TokenRun& run, HeadRange heads) const;
  /// The whole piece.
  PieceRows all_of(int index) const {
    const Piece& piece = (*this)[index];
    return {index, 0, tokens_in(piece.tokens), {0, piece.heads.count}};
  }
  /// The same in any piece of the kind that has `least` of them, which is needed in this round: the
  /// share comes before others, what is held last.
  PieceRows find(PieceKind kind, const TokenRun& run, HeadRange heads, std::int64_t least = 1);
  /// Where all rows of the runs lie; empty where some of them lie nowhere.
  std::vector<PieceRows> find_all(PieceKind kind, const TokenRuns& tokens, HeadRange heads);

  void use(int index) { use_of(index) = {rounds_, false}; }
  bool is_used_now(int index) const {
    return uses_[static_cast<std::size_t>(index)].round == rounds_;
  }
  /// It was put together with others, and is needed no more unless it is found again.
  void spend(int index) { use_of(index) = {rounds_, true}; }
  /// Results that are not the rank's own leave, each row once: when all have left, the piece is
  /// found no more.
  void leave(const PieceRows& rows);

  /// Tells the rounds when pieces end, and gives them away.
  std::vector<Piece> finish(std::vector<ProgramRound>& rounds);

 private:
  struct Use {
    int round = 0;  // from 1 on; 0: before all rounds
    bool spends = false;
  };
  bool is_gone(int index) const;
  Use& use_of(int index) { return uses_[static_cast<std::size_t>(index)]; }

  std::vector<Piece> pieces_;
  // By piece:
  std::vector<Use> uses_;           // the last ones
  std::vector<std::int64_t> left_;  // rows of heads
  int first_foreign_ = 0, rounds_ = 0;
};

}  // namespace heddle
