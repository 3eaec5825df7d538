#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "recover/company.h"
#include "train/epoch_meeting.h"
#include "train/lost_state.h"
#include "train/run_setup.h"

namespace heddle {

/// Error(usage) where the run has something that cannot be taken again or given to others when a
/// rank is lost.
void require_outliving(const config::RunConfig& config, const ModelSpec& spec);

/// The epochs of a run that outlives its ranks, as one of them goes through them
/// (docs/design/050-runs-that-outlive-ranks.md): who computes together, in which mesh, and which
/// step counts. What is made of the ranks of an epoch has to go before the next one is entered.
class Epochs {
 public:
  /// Error(usage) as require_outliving.
  Epochs(recover::Company& company, const RunBasis& basis);

  /// Waits for the next epoch. What it throws ends the run on this rank.
  void next() { epoch_ = company_.next(); }
  /// All members of the epoch tell each other where they stand; all that follows follows from that.
  /// Error(usage) on newcomers that are not of this run, Error(peer) then on the others.
  void meet(const MemberNews& own);
  const EpochMeeting& meeting() const { return *meeting_; }
  const recover::Epoch& epoch() const { return epoch_; }
  /// All members, also those who wait.
  World& all() const { return *epoch_.world; }

  /// All members. Those who compute together get their worlds. Where they are too few for any mesh
  /// and have state to keep, they wait for others for recover.timeout, or until `is_told_to_end` on
  /// one of them. Error(peer): some have come, with the next epoch. What else it throws ends the
  /// run: they have stayed too few, or state was lost and there is no checkpoint.
  void arrange(const std::function<bool()>& is_told_to_end);
  const recover::Arrangement& arrangement() const { return arrangement_; }
  /// Where state comes from that members had; nothing of it in a run that is yet to start.
  const Recovery& recovery() const { return recovery_; }
  /// Whether the pipeline has all the ranks that the run file asks for.
  bool has_all_stages() const { return arrangement_.request.pp == basis_.config.parallel.pp; }
  KeptStages kept_stages() const;
  bool is_spare() const { return is_spare_; }
  RunRanks ranks() const {
    return {.world = *members_,
            .placed = *placed_,
            .go_on = meeting_->has_state(),
            .sites = has_sites() ? arrangement_.sites : std::vector<int>()};
  }
  /// Whether the run has sites. They stay in step (docs/design/055-elastic-sites.md).
  bool has_sites() const { return basis_.config.parallel.sites > 1; }
  /// The run file with the mesh of this epoch.
  const config::RunConfig& config() const { return config_; }
  /// When what was made of them is gone.
  void leave();

  /// The epoch goes on behind this step of the run.
  void begin_behind(std::int64_t step) { first_step_ = step; }
  std::int64_t first_step() const { return first_step_; }
  /// The step is complete on all ranks. Error(peer) where the epoch has ended before: nothing of
  /// the step may be kept. `must_meet`: they do not know that of each other yet.
  void decide(std::int64_t step, bool must_meet);
  /// Of sites: what `asks` says on any rank when a step is decided is known to all ranks of all
  /// sites behind it.
  void ask(std::function<bool()> asks) { asks_ = std::move(asks); }
  bool is_asked() const { return is_asked_; }
  void stepping(bool is_in_step) { company_.stepping(is_in_step); }
  bool wants_change() const { return company_.wants_change(); }
  void change() { company_.change(); }
  void leave_run() { company_.leave(); }
  void end() { company_.end(); }

  /// What those who compute tell spares at the end of the run: one of these may be the first of
  /// all, who tells the user.
  struct End {
    std::int64_t step = 0;
    int stopped_by = 0;
    std::int64_t checkpoint = -1;  ///< the step of the newest one; -1: there is none
    double loss = 0.0;
  };
  /// Until the run ends. Error(peer) when the epoch does before. `look` is called now and then.
  End wait_as_spare(const std::function<void()>& look) const;
  void tell_spares(const End& end) const;

 private:
  void find_mesh(const recover::Former& former, const std::function<bool()>& is_told_to_end);
  [[noreturn]] void wait_for_others(const Error& refusal,
                                    const std::function<bool()>& is_told_to_end);
  std::string cut_for_stages() const;
  void choose_recovery(LostState lost);

  recover::Company& company_;
  const RunBasis& basis_;
  recover::Epoch epoch_;
  std::optional<EpochMeeting> meeting_;
  recover::Arrangement arrangement_;
  Recovery recovery_;
  recover::StageBlocks blocks_before_;
  bool is_spare_ = false;
  std::function<bool()> asks_;
  bool is_asked_ = false;
  std::unique_ptr<World> members_, placed_;
  config::RunConfig config_;
  std::int64_t first_step_ = 0;
  /// Since when there have been too few for any mesh, in whatever epochs.
  std::optional<std::chrono::steady_clock::time_point> too_few_since_;
};

}  // namespace heddle
