#include "parallel/sequence/call_marks.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <tuple>

namespace heddle {
namespace {

/// Which rows and heads of a piece something was done with.
class UsedRows {
 public:
  /// From now on these are. Whether none of them was before.
  bool add(std::int64_t first, std::int64_t count, HeadRange heads) {
    bool is_new = true;
    for (const auto& [others, rows] : by_heads_) {
      const bool share_heads = std::max(heads.first, others.first) <
                               std::min(heads.first + heads.count, others.first + others.count);
      is_new = is_new && !(share_heads && has_some(rows, first, first + count));
    }
    auto same = std::ranges::find(by_heads_, heads, &ByHeads::first);
    if (same == by_heads_.end()) same = by_heads_.insert(same, {heads, {}});
    insert(same->second, first, first + count);
    return is_new;
  }

 private:
  using Stretches = std::map<std::int64_t, std::int64_t>;  // from the first row to behind the last
  using ByHeads = std::pair<HeadRange, Stretches>;

  static bool has_some(const Stretches& rows, std::int64_t begin, std::int64_t end) {
    const auto behind = rows.lower_bound(end);
    return behind != rows.begin() && std::prev(behind)->second > begin;
  }
  static void insert(Stretches& rows, std::int64_t begin, std::int64_t end) {
    while (has_some(rows, begin, end)) {
      const auto other = std::prev(rows.lower_bound(end));
      begin = std::min(begin, other->first);
      end = std::max(end, other->second);
      rows.erase(other);
    }
    rows[begin] = end;
  }

  std::vector<ByHeads> by_heads_;  // few: methods divide heads into some parts
};

}  // namespace

void mark_first_results(ContextProgram& program, ContextPassKind pass) {
  std::vector<UsedRows> used(program.pieces.size());
  std::vector<std::int64_t> written(program.pieces.size(), 0);
  const auto use = [&](const PieceRows& rows) {
    return used[static_cast<std::size_t>(rows.piece)].add(rows.first, rows.count, rows.heads);
  };
  const auto is_written = [&](const PieceRows& rows) {
    const bool is_first = use(rows);
    if (is_first) written[static_cast<std::size_t>(rows.piece)] += rows.count * rows.heads.count;
    return is_first;
  };
  const auto use_all = [&](const std::vector<Transfer>& transfers) {
    for (const Transfer& transfer : transfers) {
      if (const int index = transfer.piece; index >= 0) {
        const Piece& whole = program.pieces[static_cast<std::size_t>(index)];
        use({index, 0, tokens_in(whole.tokens), {0, whole.heads.count}});
      }
      for (const PieceRows& rows : transfer.rows) use(rows);
    }
  };
  for (ProgramRound& round : program.rounds) {
    use_all(round.sends);
    for (TileCall& call : round.tiles) {
      if (pass == ContextPassKind::forward) {
        call.is_first = is_written(call.results);
      } else {
        use(call.results);
        use(call.key_results);
      }
    }
    const auto first =
        std::stable_partition(round.added.begin(), round.added.end(),
                              [&](const RowsInTwo& rows) { return !is_written(rows.to); });
    round.written.assign(first, round.added.end());
    round.added.erase(first, round.added.end());
    use_all(round.receives);
  }
  for (std::size_t i = 0; i < written.size(); ++i) {
    Piece& piece = program.pieces[i];
    piece.is_cleared = written[i] < tokens_in(piece.tokens) * piece.heads.count;
  }
}

void mark_last_calls(ContextProgram& backward) {
  std::map<int, std::size_t> last_rounds;
  for (std::size_t round = 0; round < backward.rounds.size(); ++round) {
    for (const TileCall& call : backward.rounds[round].tiles) {
      const PieceRows& rows = call.results;
      Piece& piece = backward.pieces[static_cast<std::size_t>(rows.piece)];
      const std::int64_t end = rows.first + rows.count, all = tokens_in(piece.tokens);
      // A call of the whole piece may have any number of rows: it ends with the piece.
      if (piece.row_multiple == 0) piece.row_multiple = std::int64_t{1} << 32;
      piece.row_multiple = std::gcd(piece.row_multiple, rows.first);
      if (end != all) piece.row_multiple = std::gcd(piece.row_multiple, end);
      if (call.jump != 0) {
        piece.row_multiple = std::gcd(piece.row_multiple, rows.first + call.jump_at);
      }
      last_rounds[rows.piece] = round;
    }
  }
  for (const auto& [piece, round] : last_rounds) backward.rounds[round].summed.push_back(piece);
}

void mark_waiting(ContextProgram& program) {
  constexpr int kMost = 3;              // each takes memory
  if (program.exchanges_heads) return;  // results go on from where they are added
  const auto is_for_own = [](const Transfer& transfer) {
    return transfer.message.is_partial && !transfer.rows.empty() &&
           std::ranges::all_of(transfer.rows, [](const PieceRows& rows) {
             return rows.piece == ContextProgram::kResults ||
                    rows.piece == ContextProgram::kKeyResults;
           });
  };
  const auto key_of = [](const PieceRows& rows) {
    return std::tuple(rows.piece, rows.first, rows.count, rows.heads.first, rows.heads.count);
  };
  std::map<decltype(key_of({})), std::size_t> last_rounds;  // in which something comes for the rows
  for (std::size_t round = 0; round < program.rounds.size(); ++round) {
    for (const Transfer& transfer : program.rounds[round].receives) {
      for (const PieceRows& rows : transfer.rows) last_rounds[key_of(rows)] = round;
    }
  }
  int waiting = 0;
  std::size_t until = 0;  // the last round in which more comes for what waits
  for (std::size_t at = 0; at < program.rounds.size(); ++at) {
    ProgramRound& round = program.rounds[at];
    for (const Transfer& transfer : round.receives) {
      if (!is_for_own(transfer)) continue;
      ++waiting;
      for (const PieceRows& rows : transfer.rows) {
        until = std::max(until, last_rounds.at(key_of(rows)));
      }
    }
    const bool all_wait = std::ranges::all_of(round.receives, [&](const Transfer& transfer) {
      return transfer.rows.empty() || is_for_own(transfer);
    });
    round.puts_away = waiting >= kMost || until <= at || !all_wait;
    if (!round.puts_away) continue;
    waiting = 0;
    until = 0;
  }
}

}  // namespace heddle
