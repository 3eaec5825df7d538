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
      if (!is_there(piece)) stage_is_lost_[stage_of(piece)] = true;
      if (!piece.is_of_experts) parts_.insert(piece.part);
    }
    for (const int site : losses.sites) {
      const auto is_gone = [&](const StatePiece& piece) {
        return site_of(piece) == site && !is_there(piece);
      };
      if (std::ranges::none_of(pieces, is_gone)) whole_sites_.push_back(site);
    }
  }

  const std::vector<int>& whole_sites() const { return whole_sites_; }

  Restoration choose() {
    Restoration made{.step = losses_.step, .is_exact = losses_.left_out.empty() && !loses_own()};
    for (const StatePiece& piece : pieces_) {
      if (std::ranges::none_of(piece.holders, [&](int rank) { return is_lost(rank); })) continue;
      if (is_of_other_site(site_of(piece))) {
        const bool is_gone = goes_on(site_of(piece)) && !is_there(piece);
        if (is_gone && is_saved()) return from_checkpoint(source_of(piece));
        continue;
      }
      const PieceSource source = source_of(piece);
      if (source.kind == PieceSource::Kind::checkpoint) return from_checkpoint(source);
      if (source.kind == PieceSource::Kind::neighbours) made.is_exact = false;
      made.sources.push_back(source);
    }
    for (const int site : losses_.sites_now) {
      if (site_taken(site, whole_sites_) == site) continue;
      made.is_exact = false;
      made.sources.push_back(
          {.kind = PieceSource::Kind::site, .site = site, .taken = site_taken(site, whole_sites_)});
    }
    if (gives_up_sites()) made.is_exact = false;
    made.line = line_of(made);
    return made;
  }

  std::vector<int> nobody_has() const {
    std::vector<int> stages;
    for (int stage = 0; stage < losses_.stages; ++stage) {
      if (!stage_is_lost_[static_cast<std::size_t>(stage)]) continue;
      const auto is_of_it = [&](const StatePiece& piece) { return piece.stage == stage; };
      const bool was_left_out = std::ranges::find_if(pieces_, is_of_it)->holders.empty();
      if (!was_left_out && recovery_of(stage).kind == StageRecovery::Kind::impossible) return {};
      stages.push_back(stage);
    }
    return stages;
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

  bool is_there(const StatePiece& piece) const {
    return alive(piece.holders) || alive(piece.copies);
  }
  int site_of(const StatePiece& piece) const {
    return losses_.sites[static_cast<std::size_t>(piece.site)];
  }
  /// Whether what it had is of no use: it goes on as another one is, or not at all.
  bool is_of_other_site(int site) const {
    if (whole_sites_.empty()) return false;
    return site_taken(site, whole_sites_) != site || !goes_on(site);
  }
  bool goes_on(int site) const { return std::ranges::count(losses_.sites_now, site) > 0; }
  bool gives_up_sites() const {
    return !std::ranges::all_of(losses_.sites, [&](int site) { return goes_on(site); });
  }

  PieceSource source_of(const StatePiece& piece) const {
    PieceSource source{
        .stage = piece.stage, .part = piece.part, .is_of_experts = piece.is_of_experts};
    if (losses_.sites.size() > 1) source.site = site_of(piece);
    if (const auto rank = alive(piece.holders)) {
      source.kind = PieceSource::Kind::replica;
      source.rank = *rank;
    } else if (const auto keeper = alive(piece.copies)) {
      source.kind = PieceSource::Kind::copy;
      source.rank = *keeper;
    } else {
      source.recovery = recovery_of(piece.stage);
      const bool can = source.recovery.kind != StageRecovery::Kind::impossible && !is_saved();
      source.kind = can ? PieceSource::Kind::neighbours : PieceSource::Kind::checkpoint;
      if (source.recovery.kind == StageRecovery::Kind::mean) weigh(source);
    }
    return source;
  }

  StageRecovery recovery_of(int stage) const {
    const bool has_blocks = !losses_.blocks.begins.empty();
    return recover::recovery_of(stage, stage_is_lost_, losses_.checkfree,
                                has_blocks ? losses_.blocks.first() : 0);
  }

  /// As where a rank was told to leave: going back to the checkpoint costs no step.
  bool is_saved() const { return losses_.checkpoint == losses_.step && losses_.leaves_out.empty(); }

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

  std::string name_of(const PieceSource& piece) const {
    const std::string name = name_in_site(piece);
    return piece.site < 0 ? name : fmt::format("{} of site {}", name, piece.site);
  }
  std::string name_in_site(const PieceSource& piece) const {
    const auto [stage, part] = std::pair(piece.stage, piece.part);
    if (piece.is_of_experts) return fmt::format("part {} of the experts of stage {}", part, stage);
    return parts_.size() == 1 ? fmt::format("stage {}", stage)
                              : fmt::format("part {} of stage {}", part, stage);
  }

  /// Of a source or of blocks.
  static std::string weights_of(const auto& made) {
    return made.weight_before + made.weight_after == 0.0F
               ? std::string("which count alike")
               : fmt::format("weighted {:.4g} to {:.4g} by the norms of their gradients",
                             made.weight_before, made.weight_after);
  }

  std::string text_of(const PieceSource& source) const {
    const std::string name = name_of(source);
    switch (source.kind) {
      case PieceSource::Kind::replica:
        return fmt::format("{} from its replica on rank {}", name, source.rank);
      case PieceSource::Kind::copy:
        return fmt::format("{} from the copy on rank {}", name, source.rank);
      case PieceSource::Kind::site:
        return fmt::format("site {} with the weights and moments of site {}", source.site,
                           source.taken);
      default: break;
    }
    if (is_left_out(source.stage)) {
      const auto* const begin = &losses_.blocks.begins[static_cast<std::size_t>(source.stage)];
      return fmt::format(
          "{} ({}) is left out until a rank takes its place, and is then made of stages {} and {}",
          name, blocks_text(begin[0], begin[1]), source.recovery.before, source.recovery.after);
    }
    return source.recovery.kind == StageRecovery::Kind::copy
               ? fmt::format("{} as stage {} is (CheckFree+)", name, source.recovery.before)
               : fmt::format("{} as the mean of stages {} and {}, {} (CheckFree)", name,
                             source.recovery.before, source.recovery.after, weights_of(source));
  }

  std::string line_of(const Restoration& made) const {
    std::vector<std::string> texts;
    for (const PieceSource& source : made.sources) texts.push_back(text_of(source));
    for (const LostBlocks& blocks : losses_.left_out) texts.push_back(text_of(blocks));
    for (const int site : losses_.sites) {
      if (!goes_on(site)) texts.push_back(fmt::format("site {} waits for ranks", site));
    }
    const std::string why = is_anybody_lost()                          ? who() + ": "
                            : is_anything_made() || is_any_site_made() ? "ranks have come: "
                                                                       : "";
    if (texts.empty()) {
      return fmt::format("{}nothing was there only, going on behind step {}", why, losses_.step);
    }
    return fmt::format("{}{}; {}, going on behind step {}", why, fmt::join(texts, ", "),
                       exactness(made), losses_.step);
  }

  /// Of blocks that were left out.
  std::string text_of(const LostBlocks& blocks) const {
    const int count = blocks.end - blocks.begin;
    const std::string name = blocks_text(blocks.begin, blocks.end);
    if (is_left_out(losses_.blocks.stage_of(blocks.begin))) {
      return fmt::format("{} stay{} left out until a rank comes", name, count == 1 ? "s" : "");
    }
    return fmt::format("{}, left out until now, as the mean of {} and {}, {} (CheckFree)", name,
                       blocks_text(blocks.before, blocks.before + count),
                       blocks_text(blocks.after, blocks.after + count), weights_of(blocks));
  }

  bool is_left_out(int stage) const {
    return std::ranges::find(losses_.leaves_out, stage) != losses_.leaves_out.end();
  }
  bool is_anybody_lost() const {
    return std::ranges::find(losses_.is_lost, true) != losses_.is_lost.end();
  }
  bool loses_own() const { return !losses_.own_things.empty() && is_anybody_lost(); }
  /// Of the stages that nobody has.
  bool is_anything_made() const { return nobody_has().size() > losses_.leaves_out.size(); }
  /// Of those that go on.
  bool is_any_site_made() const {
    return std::ranges::any_of(losses_.sites_now,
                               [&](int site) { return site_taken(site, whole_sites_) != site; });
  }

  std::string exactness(const Restoration& made) const {
    if (made.is_exact) return "exact";
    std::vector<std::string> changes;
    for (const int site : losses_.sites) {
      if (is_of_other_site(site)) {
        changes.push_back(fmt::format("what site {} alone had is gone", site));
      }
    }
    if (is_anything_made()) {
      changes.push_back(
          fmt::format("moments begin at zero and learning rates are {} times the schedule's there",
                      kRaisedRate));
    }
    if (loses_own()) changes.push_back(losses_.own_things + " that were there are gone");
    return changes.empty() ? "not exact" : fmt::format("not exact: {}", fmt::join(changes, ", "));
  }

  Restoration from_checkpoint(const PieceSource& source) const {
    const std::string why =
        fmt::format("{}: {} has no replica and no copy left, and {}", who(), name_of(source),
                    losses_.sites.size() > 1 ? whole_sites_.empty() ? "no site has all of its state"
                                                                    : "another site is not exact"
                    : source.recovery.why.empty() ? "neighbours are not exact"
                                                  : source.recovery.why);
    if (!losses_.checkpoint) {
      throw Error(ErrorCode::data, fmt::format("{}; there is no checkpoint", why),
                  "start the run again, with recover.copies = 1 or a lower checkpoint.every");
    }
    Restoration made{.step = *losses_.checkpoint, .is_exact = true};
    for (const StatePiece& each : pieces_) {
      made.sources.push_back(
          {.stage = each.stage, .part = each.part, .is_of_experts = each.is_of_experts});
    }
    made.line = made.step == losses_.step
                    ? fmt::format("{}; all take the checkpoint of step {}, which is this one", why,
                                  made.step)
                    : fmt::format("{}; all go back from step {} to the checkpoint of step {}", why,
                                  losses_.step, made.step);
    return made;
  }

  const std::vector<StatePiece>& pieces_;
  const Losses& losses_;
  std::vector<bool> stage_is_lost_;
  std::vector<int> whole_sites_;
  std::set<int> parts_;
};

}  // namespace

int site_taken(int site, const std::vector<int>& whole) {
  if (whole.empty() || std::ranges::count(whole, site) > 0) return site;
  return whole[static_cast<std::size_t>(site) % whole.size()];
}

std::vector<int> whole_sites(const std::vector<StatePiece>& pieces, const Losses& losses) {
  return Choice(pieces, losses).whole_sites();
}

Restoration choose_sources(const std::vector<StatePiece>& pieces, const Losses& losses) {
  return Choice(pieces, losses).choose();
}

std::vector<int> stages_nobody_has(const std::vector<StatePiece>& pieces, const Losses& losses) {
  return Choice(pieces, losses).nobody_has();
}

}  // namespace heddle::recover
