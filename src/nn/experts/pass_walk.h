#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "nn/experts/exchange.h"
#include "nn/experts/experts_pass.h"
#include "nn/experts/idle_network.h"

namespace heddle {

/// Carries out a pass over experts that are divided over ranks, task by task as its list says
/// (experts_pass.h, docs/design/043-experts-schedules-and-places.md). The rank's own thread issues
/// the list and computes; exchanges between nodes are those over ep, exchanges within a node those
/// over etp, and both are made by the threads of their communicators where these run in the
/// background: one that needs another waits for it there. Otherwise everything follows the list.
/// For one pass.
class PassWalk {
 public:
  /// A tensor with a row for every row that travels.
  struct Load {
    Tensor rows;
    ExpertExchange::Content content = ExpertExchange::Content::rows;
  };
  using Loads = std::vector<Load>;

  /// What is computed here.
  struct Computing {
    /// Of a piece: from what has come of every load to what goes back, which is nothing where the
    /// pass does not come back.
    std::function<Loads(std::size_t piece, const std::vector<Tensor>& arrived)> expert;
    /// The gradients of weights, from all rows that came; absent: not in this pass.
    std::function<void(const std::vector<Tensor>& arrived_N)> weights = {};
    /// What may be sent behind the last dispatch; null: nothing.
    IdleNetwork* idle = nullptr;
  };
  /// By load: all rows that came here, as the pieces have them one behind the other, and all that
  /// came back.
  struct Rows {
    std::vector<Tensor> arrived_N, home_R;
  };

  /// All of them outlive it.
  PassWalk(const ExpertExchange& exchange, const ExpertExchange::Ways& ways, Ctx& ctx)
      : exchange_(exchange), ranks_(exchange.ranks()), ways_(ways), ctx_(ctx) {}

  /// Rows of `there` lie as the pieces take them. All ranks of the exchange call it with as many
  /// loads.
  Rows run(Loads there, bool comes_back, const Computing& computing) const;

 private:
  using Piece = ExpertExchange::Piece;
  using Prepare = std::function<void(Stream&)>;
  /// Rows under way.
  struct Moving {
    Work work = {};
    Tensor rows = {};  ///< that are there when it has ended
    ExpertExchange::Content content = ExpertExchange::Content::rows;
    std::pair<std::int64_t, DType> plain = {};  ///< width and type where no hook has them
    bool is_encoded = false;
    Tensor sum_NR = {};             ///< of parts that nobody has added up
    std::vector<Tensor> held = {};  ///< what the way uses: the rank lets it go, not a lane
  };

  Moving dispatch(const Load& load, const Piece& piece) const;
  void gather(Moving& moving, const Piece& piece) const;
  /// Rows of own experts, sorted by them.
  void arrive(const Moving& moving, const Piece& piece, const Tensor& rows_ND) const;
  Moving scatter(const Load& load, const Piece& piece) const;
  void combine(Moving& moving, const Piece& piece) const;
  /// The lane between nodes goes on when these have ended.
  void stand_behind(std::vector<Work> sums) const;
  void come_home(const Moving& moving, const Tensor& rows) const;

  /// The all-to-all over ep of rows that are there behind `prepare`.
  void cross(Moving& moving, const Tensor& sent, const Piece& piece, bool back,
             const Prepare& prepare) const;
  /// The one over etp, in the lane that it has in this pass.
  void meet(Moving& moving, const Tensor& sent, const Piece& piece, bool back,
            const Prepare& prepare) const;

  const ExpertExchange& exchange_;
  const ExpertRanks& ranks_;
  const ExpertExchange::Ways& ways_;
  Ctx& ctx_;
};

}  // namespace heddle
