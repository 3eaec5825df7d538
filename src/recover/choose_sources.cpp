#include "recover/choose_sources.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.h"
#include "base/error.h"

namespace heddle::recover {
namespace {

class Choice {
 public:
  Choice(const std::vector<StatePiece>& pieces, const Losses& losses)
      : pieces_(pieces), losses_(losses), stage_is_lost_(static_cast<std::size_t>(losses.stages)) {
    for (const StatePiece& piece : pieces) {
      HEDDLE_CHECK(piece.stage >= 0 && piece.stage < losses.stages, "stage {} of {}", piece.stage,
                   losses.stages);
      if (!alive(piece.holders) && !alive(piece.copies)) stage_is_lost_[stage_of(piece)] = true;
      parts_.insert(piece.part);
    }
  }

  Restoration choose() {
    Restoration made{.step = losses_.step};
    for (const StatePiece& piece : pieces_) {
      if (std::ranges::none_of(piece.holders, [&](int rank) { return is_lost(rank); })) continue;
      const PieceSource source = source_of(piece);
      if (source.kind == PieceSource::Kind::checkpoint) return from_checkpoint(piece, source);
      if (source.kind == PieceSource::Kind::neighbours) made.is_exact = false;
      made.sources.push_back(source);
    }
    made.line = made.sources.empty() ? fmt::format(
                                           "{}: nothing was there only, going on behind "
                                           "step {}",
                                           who(), losses_.step)
                                     : line_of(made);
    return made;
  }

 private:
  static std::size_t stage_of(const StatePiece& piece) {
    return static_cast<std::size_t>(piece.stage);
  }
  bool is_lost(int rank) const { return losses_.is_lost[static_cast<std::size_t>(rank)]; }
  std::optional<int> alive(const std::vector<int>& ranks) const {
    const auto found = std::ranges::find_if(ranks, [&](int rank) { return !is_lost(rank); });
    return found == ranks.end() ? std::nullopt : std::optional(*found);
  }

  PieceSource source_of(const StatePiece& piece) const {
    PieceSource source{.stage = piece.stage, .part = piece.part};
    if (const auto rank = alive(piece.holders)) {
      source.kind = PieceSource::Kind::replica;
      source.rank = *rank;
    } else if (const auto keeper = alive(piece.copies)) {
      source.kind = PieceSource::Kind::copy;
      source.rank = *keeper;
    } else {
      source.recovery =
          recovery_of(piece.stage, stage_is_lost_, losses_.checkfree, losses_.first_stage);
      const bool can = source.recovery.kind != StageRecovery::Kind::impossible;
      source.kind = can ? PieceSource::Kind::neighbours : PieceSource::Kind::checkpoint;
      if (source.recovery.kind == StageRecovery::Kind::mean) weigh(source);
    }
    return source;
  }

  /// Norms that are not known, or of a step that was skipped, say nothing: neighbours then count
  /// alike.
  void weigh(PieceSource& source) const {
    if (losses_.norms.empty()) return;
    const auto norm = [&](int stage) {
      return static_cast<float>(losses_.norms[static_cast<std::size_t>(stage)]);
    };
    const float before = norm(source.recovery.before), after = norm(source.recovery.after);
    if (!std::isfinite(before + after)) return;
    source.weight_before = before;
    source.weight_after = after;
  }

  std::string who() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < losses_.is_lost.size(); ++rank) {
      if (losses_.is_lost[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return fmt::format("rank{} {} {} lost", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                       ranks.size() == 1 ? "is" : "are");
  }

  std::string name_of(int stage, int part) const {
    return parts_.size() == 1 ? fmt::format("stage {}", stage)
                              : fmt::format("part {} of stage {}", part, stage);
  }

  static std::string weights_of(const PieceSource& source) {
    return source.weight_before + source.weight_after == 0.0F
               ? std::string("which count alike")
               : fmt::format("weighted {:.4g} to {:.4g} by the norms of their gradients",
                             source.weight_before, source.weight_after);
  }

  std::string text_of(const PieceSource& source) const {
    const std::string name = name_of(source.stage, source.part);
    switch (source.kind) {
      case PieceSource::Kind::replica:
        return fmt::format("{} from its replica on rank {}", name, source.rank);
      case PieceSource::Kind::copy:
        return fmt::format("{} from the copy on rank {}", name, source.rank);
      default: break;
    }
    return source.recovery.kind == StageRecovery::Kind::copy
               ? fmt::format("{} as stage {} is (CheckFree+)", name, source.recovery.before)
               : fmt::format("{} as the mean of stages {} and {}, {} (CheckFree)", name,
                             source.recovery.before, source.recovery.after, weights_of(source));
  }

  std::string line_of(const Restoration& made) const {
    std::vector<std::string> texts;
    for (const PieceSource& source : made.sources) texts.push_back(text_of(source));
    return fmt::format("{}: {}; {}, going on behind step {}", who(), fmt::join(texts, ", "),
                       made.is_exact ? "exact"
                                     : fmt::format("not exact: moments begin at zero and learning "
                                                   "rates are {} times the schedule's there",
                                                   kRaisedRate),
                       losses_.step);
  }

  Restoration from_checkpoint(const StatePiece& piece, const PieceSource& source) const {
    const std::string why = fmt::format("{}: {} has no replica and no copy left, and {}", who(),
                                        name_of(piece.stage, piece.part), source.recovery.why);
    if (!losses_.checkpoint) {
      throw Error(ErrorCode::data, fmt::format("{}; there is no checkpoint", why),
                  "start the run again; with a lower checkpoint.every less would be lost");
    }
    Restoration made{.step = *losses_.checkpoint, .is_exact = true};
    for (const StatePiece& each : pieces_) {
      made.sources.push_back({.stage = each.stage, .part = each.part});
    }
    made.line = fmt::format("{}; all go back from step {} to the checkpoint of step {}", why,
                            losses_.step, made.step);
    return made;
  }

  const std::vector<StatePiece>& pieces_;
  const Losses& losses_;
  std::vector<bool> stage_is_lost_;
  std::set<int> parts_;
};

}  // namespace

Restoration choose_sources(const std::vector<StatePiece>& pieces, const Losses& losses) {
  return Choice(pieces, losses).choose();
}

}  // namespace heddle::recover
