#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/param_store.h"
#include "parallel/step/outer_policy.h"

namespace heddle {

/// The outer steps of sites that train apart: keeps the outer weights of what this rank holds and
/// exchanges them with the ranks of the same place in other sites
/// (docs/design/036-local-training.md). Between outer_begin and outer_end of a fragment bytes
/// travel in the background.
class OuterSteps {
 public:
  /// Lets the store, whose optimizer has declared its states, keep the outer ones. Store, units
  /// and policy outlive it.
  OuterSteps(ParamStore& store, const RankUnits& units, const OuterPolicy& policy);

  /// The name of the state that outer weights are.
  static constexpr const char* kWeights = "outer";
  /// And of what a codec has not sent yet.
  static constexpr const char* kResidual = "outer_residual";

  /// What messages call the sites, in the order of the axis; 0, 1, ... otherwise.
  void name_sites(std::vector<int> numbers) { numbers_ = std::move(numbers); }

  // All ranks call these at the same point, between steps.

  /// Outer weights become what own weights are: the start of a run. Error(data) names site and
  /// tensor if sites have others.
  void start(Stream& stream);
  /// Outer state was restored as it was behind this step, with what was under way settled.
  void resume(std::int64_t step, Stream& stream);
  /// Lets exchanges under way have their effect on outer weights at once. Own weights get theirs
  /// when they would have.
  void settle(Stream& stream);
  /// Layers see the outer weights until it is called again.
  void swap_weights(Stream& stream);

  /// The next step begins; returns its number, by which a told step has its outer ops
  /// (StepPolicy::step).
  std::int64_t next_step() { return ++step_; }
  /// Without taking those before: for dry runs.
  void skip_to(std::int64_t step) { step_ = step; }
  /// outer_begin or outer_end.
  void perform(const StepOp& op, Stream& stream);

  // ---- Where ranks may be lost (docs/design/055-elastic-sites.md) -------------------------------

  /// They may; `tell` is called before the rank waits for an exchange that has not come yet.
  void outlive_ranks(std::function<void()> tell) { before_waiting_ = std::move(tell); }

  // Some were, in this order. Nothing of it needs communicators of the mesh.

  /// What an interrupted step has left to do on this rank alone, now that its update is made: what
  /// begins in it is encoded. Layers see own weights again.
  void catch_up(std::int64_t step, Stream& stream);
  /// A piece of something that sites exchange: boxes that are alike on all ranks that hold it.
  struct Exchanged {
    ParamPiece sent;  ///< what this rank has sent of it, decoded; absent where that is settled
    ParamPiece weights;
    std::optional<ParamPiece> velocity;  ///< with momentum
  };
  /// Of exchanges under way.
  std::vector<Exchanged> open_pieces(Stream& stream);
  /// Of all others.
  std::vector<Exchanged> settled_pieces() const;
  /// What was sent of open pieces has become what all sites sent in the mean: settles them by it.
  void settle_open(Stream& stream);
  /// Own weights get their share of what ends in the step, unless they have it.
  void end_open(std::int64_t step, Stream& stream);

  // -----------------------------------------------------------------------------------------------

  /// Goes with the next exchange; its hash and waited are filled in.
  void set_note(const SiteNote& note) { note_ = note; }
  /// By site, of the exchange that ended last; empty before the first.
  const std::vector<SiteNote>& notes() const { return notes_; }
  /// Whether sites, if not this rank, have begun or ended an exchange in the newest step.
  bool has_sent() const { return policy_.begins(step_); }
  bool has_met() const { return policy_.ends(step_); }
  double waited_seconds() const { return waited_; }
  std::int64_t exchanges() const { return exchanges_; }

 private:
  using Stretches = std::vector<ParamStore::HeldStretch>;
  struct UnderWay {
    Tensor sent, received;  // of all sites; bytes, or f32 without a codec
    Tensor note_sent, notes_received;
    Work work, note_work;
    std::vector<Tensor> decoded;  // of what was sent, by stretch, where it is settled by hand
  };
  /// The step in which something last happened to a fragment.
  struct Last {
    std::int64_t begun = 0, ended = 0;
  };

  Communicator& sites() const { return store_.mesh().comm(Axis::site); }
  int site() const { return store_.mesh().coord(Axis::site); }
  int number_of(int site) const {
    return numbers_.empty() ? site : numbers_[static_cast<std::size_t>(site)];
  }
  void begin(int fragment, Stream& stream);
  void end(int fragment, Stream& stream);
  void settle(int fragment, Stream& stream);
  /// Once what is sent is known.
  void give(UnderWay& exchange, const Stretches& stretches, Stream& stream);
  void wait(const UnderWay& exchange, Stream& stream);
  void mix(int fragment, Stream& stream);
  void swap_held(Stream& stream);
  Last& last(int fragment) { return last_[static_cast<std::size_t>(fragment)]; }
  const Stretches& stretches(int fragment) const {
    return fragments_[static_cast<std::size_t>(fragment)];
  }
  void add_pieces(const ParamStore::HeldStretch& held, const Tensor& sent,
                  std::vector<Exchanged>& pieces) const;
  /// Outer minus own weights of everything in the fragment, encoded.
  Tensor encode(int fragment, Stream& stream);
  void add_up(const Tensor& received, std::int64_t at, std::int64_t each, const Tensor& mean,
              Stream& stream) const;
  void update(const ParamStore::HeldStretch& held, const Tensor& mean, const Tensor& scratch,
              Stream& stream) const;
  void mix(const ParamStore::HeldStretch& held, const Tensor& scratch, Stream& stream) const;
  Tensor scratch(const Stretches& of) const;

  const Tensor& outer_of(const ParamStore::HeldStretch& held) const {
    return held.states[first_state_];
  }
  std::vector<std::uint64_t> hashes(const Stretches& of, Stream& stream) const;
  void require_equal_tensors(const Stretches& of, Stream& stream) const;
  void look_at_notes(int fragment, const Tensor& received, Stream& stream);

  ParamStore& store_;
  const OuterPolicy& policy_;
  std::size_t first_state_ = 0, velocity_ = 0, residual_ = 0;  // of the store's; 0: none
  std::vector<int> numbers_;
  std::vector<Stretches> fragments_;
  std::map<int, UnderWay> under_way_;
  std::vector<Last> last_;  // by fragment
  bool is_swapped_ = false;
  std::function<void()> before_waiting_;
  std::int64_t step_ = 0, exchanges_ = 0;
  double waited_ = 0.0;
  SiteNote note_;
  std::vector<SiteNote> notes_;
};

}  // namespace heddle
