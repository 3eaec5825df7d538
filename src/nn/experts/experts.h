#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "nn/embedding.h"
#include "nn/experts/exchange.h"
#include "nn/experts/router.h"
#include "nn/experts/sharded_weights.h"
#include "nn/experts/short_rooms.h"
#include "nn/fused_layers.h"

namespace heddle {

/// What of a layer's work is done where.
struct ExpertDivision {
  std::unique_ptr<ExpertExchange> exchange = nullptr;  ///< null: all experts are here
  TokenShare tokens = {};   ///< that x has; what is beyond the last token is padding
  bool ends_branch = true;  ///< nothing stands behind it on its way to the residual
  /// Behind it, on this rank, another such layer keeps what it needs for backward: while this one
  /// computes, there is room for as much.
  bool is_followed = false;
};

/// A mixture of experts: y_t = the sum over the experts that the router chooses for token t of
/// weight times down_e(silu(gate_e x_t) * up_e x_t), plus what an expert that all tokens share
/// makes of x_t (docs/design/040-experts.md).
///
/// Between the passes only the insides of the experts, gate_e x and up_e x, are kept, and the
/// routing; rows are gathered again, and gradients of weights come from the insides. Rows as wide
/// as x are there for no more at once than there are tokens, on a GPU for as many as ShortRooms
/// have, so that the most that is held does not grow with the experts of a token. Where experts are
/// divided over ranks, the rows that came from others are kept too, or come again in backward.
/// What of rows and weights travels is an ExchangePlan's, which may differ from call to call.
///
/// experts.cpp has forward, experts_backward.cpp the gradients; experts_rows.cpp says which rows
/// lie where and brings them there and back; experts_stretches.cpp is what is done in ShortRooms;
/// experts_cost.cpp is what planners ask.
class Experts final : public Product {
 public:
  /// Of the experts that are here, or of this rank's part of their width: up [experts * 2 width,
  /// in], gate and up of each in turn; down [experts * in, width].
  struct Weights {
    std::shared_ptr<Parameter> up, down;
  };

  /// `shared` may be null.
  Experts(std::unique_ptr<Router> router, Weights weights, std::unique_ptr<Mlp> shared = nullptr,
          ExpertDivision division = {});

  Tensor multiply(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) override;
  /// With Ctx::rows that stay, one exchange: what comes out are the rows whose experts are here.
  Tensor multiply_of(const Tensor& x_TD, const InputOf& input_of, const Tensor& addend_TD,
                     Saved& saved, Ctx& ctx) override;
  void prepare_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_input_given(const Tensor& dy_TD, const MakeInput& input, Saved& saved,
                              Ctx& ctx) override;
  void backward_weight_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_given(Tensor dy_TD, const MakeInput& input, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  /// The rows that the choices become, sorted by expert.
  struct Order {
    Tensor offsets_E1, token_R, row_TK;
  };
  /// Where those rows are computed: here as they are, stretch by stretch, or after an exchange,
  /// piece by piece.
  struct Places {
    /// Rows [begin, end) of those that are computed here, and where those of each expert begin:
    /// of all experts, or of a stretch's.
    struct Piece {
      std::int64_t begin = 0, end = 0;
      Tensor offsets = {};
      const ExpertExchange::Piece* way = nullptr;
      std::int64_t first_expert = 0;
      Tensor row_TK = {};  ///< in ShortRooms: of the choices that are rows of it

      std::int64_t rows() const { return end - begin; }
      /// Of its experts, from a matrix for each.
      Tensor of(const Tensor& matrices_EXX) const {
        return matrices_EXX.slice(0, first_expert, first_expert + offsets.count() - 1);
      }
    };
    std::vector<Piece> pieces;
    std::int64_t experts = 0;  ///< whose rows are computed here
    /// Rows to make room for in a piece, where pieces have more or fewer from step to step; 0: as
    /// many as it has.
    std::int64_t room = 0;
    Tensor token_R = {}, row_TK = {};  ///< of the order, or with rows as pieces take them
    std::unique_ptr<const ExpertExchange::Ways> ways = {};
    std::unique_ptr<const ShardedWeights> shards = {};  ///< null: weights stay where they are
    /// Where rows may go stretch by stretch on a GPU: cut anywhere, since only the GPU knows where
    /// those of an expert begin.
    std::optional<ShortRooms> rooms = {};
    Tensor offsets_E1 = {};  ///< then, of all rows

    std::int64_t rows() const { return pieces.back().end; }
    /// The rows of all choices lie in one piece, those of dropped ones too.
    bool is_undivided() const { return !rooms && pieces.size() == 1 && rows() == token_R.count(); }
  };
  /// halved: backward of which the gradients of weights are made later.
  enum class Pass : std::uint8_t { forward, backward, halved };
  /// gate and up of all rows, piece by piece, and the matrices while they are needed for it.
  struct Inside {
    Tensor gate_up, up;
  };
  /// Of backward: gradients of the rows' outputs, of their insides, of the choices' weights and of
  /// the rows' inputs, and what `down` needs for its own.
  struct Middle {
    Tensor dy, dgate_up, y, dweights_TK, dx_R;
  };
  /// The rows of a piece.
  using PieceRows = std::function<Tensor(const Places::Piece&)>;

  Order order_of(const Routing& routing, Ctx& ctx) const;
  /// Ranks tell each other how many rows they have for whom once a micro-batch, and decide.
  ExpertExchange::Decision decision(const Order& order, Saved& saved, Ctx& ctx) const;
  Places places_of(const Order& order, Saved& saved, Pass pass, Ctx& ctx) const;
  void take_in_pieces(const Order& order, Places& places, Ctx& ctx) const;
  /// Of as many experts each as have no more rows together than there are tokens, or a few.
  static void cut_in_stretches(Places& places, Ctx& ctx);
  void take_short_rooms(Places& places, Pass pass, Ctx& ctx) const;
  static Tensor room_for(const Places::Piece& piece, std::int64_t width, DType dtype,
                         const Places& places, Ctx& ctx);
  /// The rows of tokens, and a number of every choice as the rows have them and back.
  static Tensor rows_of(const Tensor& x_TD, const Places& places, Ctx& ctx);
  static PieceRows rows_by_piece(const Tensor& x_TD, const Places& places, Ctx& ctx);
  /// Rows that are there.
  static PieceRows slices_of(const Tensor& rows);
  Tensor rows_of_choices(const Tensor& values_TK, const Places& places, Ctx& ctx) const;
  Tensor choices_of_rows(const Tensor& values_R1, const Places& places, Ctx& ctx) const;
  /// Matrices of every expert that is computed here.
  Tensor gathered(const Parameter& parameter, const Places& places, Ctx& ctx) const;
  /// Keeps what backward needs, but for rows that come from others.
  Inside begin_inside(const Order& order, const Places& places, DType dtype, Saved& saved,
                      Ctx& ctx) const;
  void fill(Inside& inside, const Places& places, std::size_t piece, const Tensor& rows,
            Ctx& ctx) const;
  void fill_all(Inside& inside, const Tensor& x_TD, const Places& places, Ctx& ctx) const;
  /// sum_TD, which may be absent, and the sum over a token's choices of weight times row. Asks for
  /// one stretch of rows after the other; where they came from others, for all at once.
  Tensor combined(const PieceRows& rows, const Places& places, const Tensor& weights_TK,
                  Tensor sum_TD, std::int64_t tokens, DType dtype, Ctx& ctx) const;
  // In ShortRooms:
  /// From x to the sum over a token's choices.
  Tensor computed(const Tensor& x_TD, Inside inside, const Places& places, const Tensor& weights_TK,
                  const Tensor& addend_TD, Ctx& ctx) const;
  /// combined of products of insides with a matrix for each expert, so many columns at a time.
  struct ByExpert {
    Tensor matrices;
    ops::Transpose transpose;
  };
  Tensor combined_products(const Tensor& insides, const ByExpert& by, const Tensor& weights_TK,
                           const Tensor& addend_TD, std::int64_t columns, const Places& places,
                           Ctx& ctx) const;
  /// differentiate, with the gradients of `down` unless `middle` keeps what these need: then they
  /// are made in columns, and differ in last bits.
  void differentiate_stretches(const Tensor& dy_TD, const Tensor& weights_TK, const Places& places,
                               Middle& middle, Ctx& ctx) const;
  static Tensor columns_of_rows(const Tensor& x_TC, const Places& places, Ctx& ctx);
  void add_up_grads(const Tensor& dgate_up, const Tensor& x_TD, const Places& places,
                    Ctx& ctx) const;
  void add_down_grads(const Tensor& dy_TD, const Tensor& y, const Places& places, Ctx& ctx) const;

  /// Rows that came from others, until backward, unless they come again there.
  void keep_input(const Tensor& rows, const Places& places, Saved& saved, Ctx& ctx) const;
  static bool sends_again(const Places& places) {
    return places.ways && places.ways->plan.sends_again;
  }
  Order saved_order(const Saved& saved) const;
  /// What forward kept of rows, as the pieces of backward have them.
  Tensor as_in_backward(Tensor rows, const Order& order, const Places& places, Saved& saved,
                        Ctx& ctx) const;
  /// dy_TD to where rows are computed, through the activation and, where they came from others,
  /// back as the gradient of the rows' inputs. Meanwhile `weights`, unless absent, which may use
  /// what `middle` has of rows. x_TD goes along where rows come again.
  void differentiate(const Tensor& dy_TD, const Tensor& x_TD, const Order& order,
                     const Places& places, Middle& middle, const std::function<void()>& weights,
                     Saved& saved, Ctx& ctx) const;
  Tensor input_rows_grad(const Tensor& dgate_up, const Tensor& up, const Places::Piece& piece,
                         const Places& places, Ctx& ctx) const;
  /// From the gradient of the rows, of the weights and of the shared expert to that of x.
  Tensor input_grad(Middle& middle, const Places& places, const Tensor& shared_dx_TD, Saved& saved,
                    Ctx& ctx);
  /// The input of the experts' rows once more.
  PieceRows rows_again(const Tensor& x_TD, const Order& order, const Places& places, Saved& saved,
                       Ctx& ctx) const;
  void add_grads(Parameter& parameter, const PieceRows& dy, const PieceRows& x,
                 const Places& places, Ctx& ctx) const;
  /// Leaves the router's and the shared expert's.
  void forget(Saved& saved) const;
  /// Elements of rows that are here for a moment where all experts are here.
  std::int64_t rows_here(const CostShape& shape) const;
  /// That a rank receives in a dry run, of so many that would be its even share.
  std::int64_t planned_rows(std::int64_t even) const;
  void add_exchange(std::int64_t rows, const CostShape& shape, Cost& cost) const;
  Tensor hooked(ExpertPlace place, const Tensor& x_TD, Ctx& ctx) const;
  /// Without padding, and with rows of zeros in its place.
  Tensor valid(const Tensor& x_TD, Ctx& ctx) const;
  Tensor padded(const Tensor& x_TD, std::int64_t rows, Ctx& ctx) const;

  /// That are here.
  std::int64_t experts() const {
    return division_.exchange ? division_.exchange->own_experts() : router_->experts();
  }
  std::int64_t width() const { return weights_.down->shape[1]; }
  /// Of what is computed here.
  std::int64_t width(const Places& places) const {
    return width() * (places.shards ? places.shards->shards() : 1);
  }
  /// Stretches of a parameter of which each shard has a part (ShardedWeights).
  std::int64_t blocks(const Parameter& parameter) const {
    return &parameter == weights_.up.get() ? 2 * experts() : experts() * in();
  }
  /// A matrix for each expert, as many as there are offsets for.
  Tensor by_expert(const Tensor& stacked, const Parameter& parameter, const Places& places) const;

  enum Slot {
    kInside = kFirstOwnSlot,
    kDownInput,
    kOffsets,
    kTokens,
    kRows,
    kCounts,
    kPlan,
    kInputRows
  };
  enum Child { kRouter, kShared };
  const std::unique_ptr<Router> router_;
  const Weights weights_;
  const std::unique_ptr<Mlp> shared_;
  const ExpertDivision division_;
};

}  // namespace heddle
