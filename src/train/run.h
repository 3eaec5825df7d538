#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "data/loader.h"
#include "recover/ledger.h"
#include "recover/peer_source.h"
#include "train/epochs.h"
#include "train/model_setup.h"
#include "train/recording.h"
#include "train/saving.h"
#include "train/session.h"
#include "train/stop_signals.h"

namespace heddle {

/// A run of training: what is done when. Computing is the session's, keeping checkpoints the
/// saving's, and the recording is told. With a Company the run outlives its ranks: what depends on
/// who they are is then made for every epoch.
class Run {
 public:
  Run(const config::RunConfig& config, const TrainOptions& options, World& world);
  Run(const config::RunConfig& config, const TrainOptions& options, recover::Company& company);

  TrainOutcome run();

 private:
  // run.cpp: from the start to the end.
  void prepare_folder();
  std::string who_keeps() const;
  std::string how_it_goes_on() const;
  void require_known_sites() const;
  /// The number of this rank's.
  int site() const;
  Saving::Options saving_options() const;
  void make_session();
  bool has_adapters() const;
  /// As the run file says, without a checkpoint.
  void begin_weights(const observe::Terminal& terminal);
  /// Session, weights and recording of a run that starts or resumes. False: it is finished.
  bool start();
  bool resume();
  std::vector<recover::LostBlocks> take_left_out();
  std::vector<std::string> left_behind() const;
  void refuse_early_freezing() const;
  MissingStates missing_states() const;
  TrainOutcome already_finished() const;
  TrainOutcome finish();

  // run_epochs.cpp: with a Company.
  TrainOutcome run_epochs();
  /// The outcome of the run, or nothing where members come or go.
  std::optional<TrainOutcome> epoch();
  void end_epoch();
  MemberNews own_news() const;
  void take_decided_step();
  void keep_state();
  std::vector<recover::HeldBox> held_state();
  std::vector<recover::HeldBox> wanted_state();
  bool set_up(bool is_start);
  observe::EpochRow describe_epoch(double seconds);
  void record(const observe::EpochRow& row) const;
  /// Where the state came from, for the user.
  std::string restore();
  void note_made(const Recovery& recovery, const std::vector<recover::LostBlocks>& lost);
  void note_made_anew(const recover::LostBlocks& blocks);
  void take_state(const StateSource& source);
  void go_back(const std::string& why);
  void begin_recording(bool is_start);
  TrainOutcome end_with_others(TrainOutcome outcome);
  TrainOutcome wait_as_spare();
  bool is_told_to_leave() const;
  bool are_all_told_to_leave();
  /// Behind a step: whether the epoch ends because members come or go.
  bool changes_members();

  // run_sites.cpp: of sites that stay in step.
  void settle_exchanges();
  /// What of `state_` each site has for itself.
  void keep_numbers_of_site(const RunState& own);
  /// All members. What is `wanted` of a site that is made anew is asked of the one it goes on as.
  void take_whole_sites(std::vector<recover::HeldBox>& wanted);

  // run_unsent.cpp: what encodings have lost.
  KeptErrors own_errors() const;
  /// Of those who summed gradients then, whose own this rank goes on with.
  std::vector<int> ranks_taken(const KeptErrors& then) const;
  /// All members. A line for the user, or "".
  std::string take_unsent();

  /// run_recut.cpp: behind a step, whether it ends because stages are to be cut again.
  bool cuts_again();

  // run_loop.cpp: between the two.
  void loop(bool is_resumed);
  recover::Share begin_share();
  void one_step(Loader& loader, const recover::Share& share);
  std::vector<MicroBatch> next_batches(Loader& loader, std::int64_t count,
                                       std::int64_t blanks) const;
  void count_step(const StepResult& result, double data_wait_seconds);
  bool has_new_signal() const;
  bool stops();
  bool stops_between_steps();
  int asked_by_sites(int own);
  bool are_sites_apart() const;
  bool are_sites_together() const;
  template <class Work>
  void with_outer_weights(const Work& work);
  void now(RunPlace::Doing doing);
  /// Evaluations have not become better for train.patience of them.
  bool is_out_of_patience() const;
  void count_evaluation(double loss);
  bool is_due(std::int64_t every) const {
    return every > 0 && state_.step > 0 && state_.step % every == 0;
  }
  bool is_evaluation_due() const;
  bool is_save_due() const;
  void note_loss(double loss);
  std::string of_router(std::int64_t index) const;
  void on_nonfinite(const StepResult& result);
  void evaluate_now();
  std::vector<std::int32_t> sample_prompt();
  void sample_now();
  void save_now();
  void tell(const std::optional<observe::CheckpointDurable>& durable);

  const config::RunConfig& config_;
  World* const world_;  // of a run without a Company
  StopSignals signals_;
  RunBasis basis_;
  const LrSchedule lr_;
  std::optional<Epochs> epochs_;  // with a Company

  // Of the ranks that there are. Members go in the reverse order of these.
  std::optional<RunSetup> setup_;
  std::optional<CheckpointReader> latest_;  // until the run goes on from it
  std::optional<Session> session_;          // a dry run has none, nor what follows
  std::optional<Recording> recording_;
  std::optional<Saving> saving_;
  std::optional<TrainStep> step_;

  RunState state_;
  std::vector<StepArgs::OfUnit> unit_rates_;  // of the session's model
  double loss_ = 0.0;
  std::optional<recover::Ledger> ledger_;  // not of sites apart, which have shares of their own
  /// Of this site's steps since it last sent something.
  struct {
    double sum = 0.0;
    std::int64_t steps = 0;
    double mean() const { return steps > 0 ? sum / static_cast<double>(steps) : 0.0; }
  } site_loss_;
  int asked_here_ = 0;            // by signals that came to this site
  std::int64_t heard_step_ = -1;  // whose notes of other sites were looked at
  int stopped_by_ = 0;            // a signal's number
  int checkpoints_asked_ = 0;     // by signals, that were seen to
  bool save_asked_ = false;       // by one that was not yet
  bool is_resumed_ = false;       // from a checkpoint, when it was started
  bool is_asked_ = true;          // by a signal to some rank, before the first step perhaps
  bool leaves_ = false;           // this rank was told to, alone

  /// What this rank has of the run while it goes from one epoch to the next.
  struct {
    bool has_state = false;         ///< of `state_`: in the session, or in boxes
    bool session_is_whole = false;  ///< the state is there, and not in boxes
    std::vector<recover::HeldBox> boxes = {};
    /// What encodings had lost, of MemberNews::errors; in the session where that is whole.
    struct Errors {
      KeptErrors of = {};
      std::vector<recover::HeldBox> boxes = {};
    };
    std::vector<Errors> errors = {};
    std::optional<recover::FormerPlace> place = {};
    std::optional<Recording::Step> last = {};  ///< the step of `state_`
    std::vector<double> totals = {};           ///< of it
    Recording::Kept kept = {};
    std::int64_t checkpoint = -1;              ///< the step of the newest one
    bool lost_save = false;                    ///< one was under way
    std::optional<Stopwatch> step_began = {};  ///< of the one that is under way
    double wasted = 0.0;                       ///< seconds of one that is taken again
    bool is_changing = false;                  ///< the epoch ends without a loss
    std::string cut = {};                      ///< of the stages, where speeds asked for another
    int cuts = 0;                              ///< how often it has become another
    std::int64_t cut_step = 0;                 ///< when it last did
    std::string refused_cut = {};              ///< one that did not fit
    std::string why_cut = {};  ///< the epoch ends, for the user; empty: not for that
  } carried_;
};

}  // namespace heddle
