#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "nn/context.h"
#include "nn/experts/exchange_choice.h"
#include "nn/experts/hooks.h"
#include "nn/experts/two_level.h"
#include "nn/layer.h"

namespace heddle {

/// The ranks that divide experts, and the rules of their exchange; the same for all layers of a
/// rank. All that is pointed to outlives them.
struct ExpertRanks {
  Communicator* ep = nullptr;   ///< have other experts
  Communicator* etp = nullptr;  ///< have other parts of the same ones
  std::shared_ptr<ExchangeChoice> choice = nullptr;
  std::shared_ptr<const ExpertHook> hook = nullptr;  ///< of rows between the ranks of ep
  float most_rows = 0;      ///< that a rank may receive, in multiples of an even share; 0: any
  double planned_rows = 1;  ///< that it receives in a dry run, in the same measure
};

/// Which rows of experts go to which of the ranks that have those experts, and back: dispatch and
/// combine of a mixture whose experts are divided over ranks (docs/design/040-experts.md). They
/// travel in a PassWalk. Rank p of ep has the
/// experts [p, p + 1) * experts / ep, of each of which rank s of etp has a part of the width. All
/// ranks make the same calls, however many rows each has.
class ExpertExchange {
 public:
  /// `name` is the layer's in messages.
  ExpertExchange(ExpertRanks ranks, std::int64_t experts, std::string name);

  std::int64_t own_experts() const { return experts_ / ranks_.ep->size(); }
  const ExpertRanks& ranks() const { return ranks_; }

  /// What is kept of a micro-batch: how many rows all ranks have for all experts, and the plan that
  /// all of them chose from it.
  struct Decision {
    Tensor counts;  ///< i32, by rank of etp, rank of ep and expert; behind them a time
    Tensor plan;    ///< in host memory, also in dry runs
  };
  /// From where a rank's own rows of each expert begin. Error(resources) if some rank would get
  /// more rows than it may.
  Decision decide(const Tensor& offsets_E1, std::int64_t rows, Ctx& ctx) const;
  static ExchangePlan plan_of(const Decision& decision);
  static constexpr std::size_t kPlanBytes = 6 * sizeof(std::int32_t);

  /// One of the pieces that rows are cut into: of each expert's rows of each rank a stretch. Rows
  /// of all pieces lie one behind the other, here [from, to), where their experts are [begin, end).
  struct Piece {
    std::int64_t from = 0, to = 0, begin = 0, end = 0;
    Tensor offsets_O1 = {};  ///< of own experts' rows, sorted by expert, then rank, then as there
    Tensor each_N1 = {};     ///< 0, 1, ...: every one of them

    // How they travel. All-to-all over ep: rows by rank, and of all ranks for 2DH.
    std::vector<std::int64_t> sent = {}, received = {};
    TwoLevel::Counts all_sent = {};
    /// Then each rank of etp that works on the same rows gives all others what it received.
    std::vector<std::int64_t> given = {}, taken = {};
    Tensor sum_NR = {};  ///< where the parts of what this rank received come back to
    /// Where each sorted row is in what arrives, which is sorted by rank first, and the other way
    /// around.
    Tensor arrived_N = {}, sorted_N = {};

    std::int64_t received_rows() const;
  };
  struct Ways {
    ExchangePlan plan = {};
    int degree = 1;
    std::int64_t mean_rows = 0;  ///< that ranks send
    std::vector<Piece> pieces = {};
    /// Of each row as sorted by expert, its place among pieces, and the other way around; absent
    /// where there is one piece.
    Tensor piece_row_R = {}, row_of_R = {};
    std::vector<std::int32_t> whole_N = {};  ///< of each row of own experts, its place in one piece
    std::int64_t rows() const { return pieces.back().end; }
  };
  /// The counts are all that it depends on. In a dry run every rank has as many rows for each one.
  /// Not for r = 0, where nothing travels.
  Ways ways(const Decision& decision, int degree, std::int64_t rows, Ctx& ctx) const;
  /// For rows that lie as `from` has them: where those of `to` are; absent: in the same places.
  static Tensor reordered(const Ways& from, const Ways& to, Ctx& ctx);

  /// Rows, or numbers of rows, which no hook sees.
  enum class Content : std::uint8_t { rows, numbers };
  /// Whether rows of this width travel through the hook, where ranks send so many on average.
  bool is_hooked(std::int64_t mean_rows, std::int64_t width, DType dtype, Content content) const;

  // What a dry run calls: of rows of so many elements, one way there and back.
  std::vector<LayerCall> calls_there(const ExchangePlan& plan, int degree, std::int64_t rows,
                                     std::int64_t width, DType dtype, Content content) const;
  std::vector<LayerCall> calls_back(const ExchangePlan& plan, int degree, std::int64_t rows,
                                    std::int64_t width, DType dtype, Content content) const;
  std::vector<LayerCall> counts_calls() const;

 private:
  std::int64_t count(const Tensor& counts, int s, int p, std::int64_t expert) const;
  void require_few_rows(const Tensor& counts, const ExchangePlan& plan) const;
  /// Ranks of etp that work on the same rows as this one.
  std::vector<int> partners(const ExchangePlan& plan) const;
  Piece dry_piece(const ExchangePlan& plan, std::int64_t rows, Ctx& ctx) const;
  Piece piece(const Decision& decision, const ExchangePlan& plan, int index, int degree,
              std::vector<std::int32_t>& whole_N, Ctx& ctx) const;
  void cut_own(const Decision& decision, Ways& ways, std::int64_t rows, Ctx& ctx) const;
  void allocate(Piece& piece, std::int64_t received, std::int64_t rows, int r, Ctx& ctx) const;
  LayerCall over_ep(std::int64_t rows, std::int64_t width, DType dtype, Content content) const;

  const ExpertRanks ranks_;
  const std::int64_t experts_;
  const std::string name_;
};

/// Of rows that go to ranks, or come from them.
std::int64_t total_rows(const std::vector<std::int64_t>& by_rank);

}  // namespace heddle
