#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "recover/membership/note.h"

namespace heddle::recover {

/// One epoch of a run, as one of its ranks sees it: who computes together, and through what.
struct Epoch {
  std::uint64_t number = 0;
  std::vector<MemberId> members = {};  ///< by their rank in `world`
  /// The last that one of them has finished: they go on behind it.
  std::int64_t step = 0;
  World* world = nullptr;  ///< lives until the next call of Company::next
  std::string cause = {};  ///< why the epoch before it ended, for the user; of the first: empty
  /// What the way here took, in seconds: to notice, to agree, to connect. Of the first: zeros.
  double detect = 0.0, agree = 0.0, connect = 0.0;
};

/// What Company::next throws on a rank that was told to leave, once the others go on without it.
class Left : public Error {
 public:
  explicit Left(std::string message) : Error(ErrorCode::stopped, std::move(message)) {}
};

/// The processes that a run goes on with while ranks are lost and others come
/// (docs/design/050-runs-that-outlive-ranks.md). A call through an epoch's world throws
/// StoppedByPeer when the epoch has ended; whoever gets one calls `next`.
class Company {
 public:
  virtual ~Company() = default;

  virtual MemberId self() const = 0;
  /// The first epoch, then each time the one behind it. Waits until it is agreed on and its ranks
  /// are connected. Error(peer) where the run does without this process, or it finds no quorum.
  /// Nothing made from the world of the epoch before is used any more.
  virtual Epoch next() = 0;
  /// A step begins, or is over. While all ranks are in one, nobody waits longer than a few steps
  /// for a rank that does not make a call: it hangs, and the epoch ends. Elsewhere (while models
  /// are loaded, evaluated, saved) ranks may take their time.
  virtual void stepping(bool is_in_step) = 0;
  /// This rank knows that the step is complete on all ranks; to be called before anything of it is
  /// kept. False: the epoch has ended before, and the step does not count.
  virtual bool finished(std::int64_t step) = 0;
  /// Processes wait to be let in, or a rank was told to leave: after the next finished step the
  /// epoch may be ended by `change`, on any rank.
  virtual bool wants_change() const = 0;
  virtual void change() = 0;
  /// This rank is to go, and nothing it has is needed any more: from now on it wants a change, and
  /// this epoch is its last, whatever that ends of.
  virtual void leave() = 0;
  /// The run is over for this rank. Waits until it is for all ranks of the epoch, so that nobody
  /// takes what follows for a loss; StoppedByPeer where one is lost before.
  virtual void end() = 0;
};

}  // namespace heddle::recover
