#include "nn/experts/pass_walk.h"

#include <utility>

#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/experts.h"

namespace heddle {
namespace {

/// A hook's rows in a lane.
Tensor hooked(const ExpertHook& hook, ExpertPlace place, const Tensor& rows, Memory& memory,
              Stream& stream) {
  const MicroBatch none;
  Ctx ctx{.stream = stream, .memory = memory, .batch = none};
  return hook.at(place, rows, ctx);
}

}  // namespace

PassWalk::Rows PassWalk::run(Loads there, bool comes_back, const Computing& computing) const {
  const std::vector<Piece>& pieces = ways_.pieces;
  const std::int64_t rows = there.front().rows.size(0);
  std::vector<std::vector<Moving>> leaving(pieces.size()), returning(pieces.size());
  std::vector<Loads> made(pieces.size());
  std::vector<std::pair<std::int64_t, DType>> widths;  // of what goes back
  const bool sends_gradients = computing.idle != nullptr && computing.idle->has_for_experts();
  Rows all;
  for (const Load& load : there) {
    all.arrived_N.push_back(ctx_.activation({ways_.rows(), load.rows.size(1)}, load.rows.dtype()));
  }
  const auto compute = [&](std::size_t index) {
    const Piece& piece = pieces[index];
    std::vector<Tensor> arrived;
    for (std::size_t i = 0; i < all.arrived_N.size(); ++i) {
      arrived.push_back(all.arrived_N[i].slice(0, piece.begin, piece.end));
      arrive(std::exchange(leaving[index][i], {}), piece, arrived.back());
    }
    if (index + 1 == pieces.size()) there.clear();
    made[index] = computing.expert(index, arrived);
  };
  using Kind = ExpertsTask::Kind;
  for (const ExpertsTask& task : make_experts_pass({.degree = ways_.degree,
                                 .sends_gradients = sends_gradients,
                                 .has_one_network = ways_.plan.networks == 1,
                                 .comes_back = comes_back,
                                 .makes_weights = computing.weights != nullptr})) {
    const auto index = static_cast<std::size_t>(task.chunk);
    const Piece& piece = pieces[index];
    switch (task.kind) {
      case Kind::dispatch:
        for (const Load& load : there) leaving[index].push_back(dispatch(load, piece));
        break;
      case Kind::gather:
        for (Moving& moving : leaving[index]) gather(moving, piece);
        break;
      case Kind::expert: compute(index); break;
      case Kind::scatter:
        for (Load& load : made[index]) {
          if (index == 0) widths.emplace_back(load.rows.size(1), load.rows.dtype());
          returning[index].push_back(scatter(std::exchange(load, {}), piece));
        }
        break;
      case Kind::combine:
        for (Moving& moving : returning[index]) combine(moving, piece);
        break;
      case Kind::weights: computing.weights(all.arrived_N); break;
      case Kind::gradients:
        stand_behind(computing.idle->begin_beside_experts(leaving.back().back().work, ctx_.stream));
        break;
    }
  }
  if (!comes_back) return all;
  for (const auto& [width, dtype] : widths) {
    all.home_R.push_back(ctx_.activation({rows, width}, dtype));
  }
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    const Piece& piece = pieces[index];
    for (std::size_t i = 0; i < all.home_R.size(); ++i) {
      come_home(std::exchange(returning[index][i], {}),
                all.home_R[i].slice(0, piece.from, piece.to));
    }
  }
  return all;
}

// ---- There --------------------------------------------------------------------------------------

PassWalk::Moving PassWalk::dispatch(const Load& load, const Piece& piece) const {
  const Tensor rows = load.rows.slice(0, piece.from, piece.to);
  Moving moving{
      .rows = rows, .content = load.content, .plain = {load.rows.size(1), load.rows.dtype()}};
  if (ranks_.ep->size() == 1) return moving;
  moving.is_encoded =
      exchange_.is_hooked(ways_.mean_rows, rows.size(1), rows.dtype(), load.content);
  const Tensor sent =
      moving.is_encoded ? ranks_.hook->at(ExpertPlace::before_dispatch, rows, ctx_) : rows;
  cross(moving, sent, piece, false, {});
  return moving;
}

void PassWalk::gather(Moving& moving, const Piece& piece) const {
  const int copies = ways_.plan.r;
  if (copies == 1) return;
  const std::int64_t own = piece.received_rows();
  const Tensor came = moving.rows;
  const auto [width, dtype] = moving.plain;
  const Tensor given = ctx_.activation({own * copies, width}, dtype);
  meet(moving, given, piece, false,
       [came, given, own, copies, before = moving.work, memory = &ctx_.memory,
        hook = std::exchange(moving.is_encoded, false) ? ranks_.hook : nullptr](Stream& stream) {
         before.follow(stream);
         const Tensor rows =
             hook ? hooked(*hook, ExpertPlace::after_dispatch, came, *memory, stream) : came;
         for (int copy = 0; copy < copies; ++copy) {
           ops::copy(rows, given.slice(0, copy * own, (copy + 1) * own), stream);
         }
       });
  moving.held.push_back(came);
}

void PassWalk::arrive(const Moving& moving, const Piece& piece, const Tensor& rows_ND) const {
  moving.work.wait(ctx_.stream);
  const Tensor rows = moving.is_encoded
                          ? ranks_.hook->at(ExpertPlace::after_dispatch, moving.rows, ctx_)
                          : moving.rows;
  ops::embedding_forward(piece.arrived_N, rows, rows_ND, ctx_.stream);
}

// ---- And back -----------------------------------------------------------------------------------

PassWalk::Moving PassWalk::scatter(const Load& load, const Piece& piece) const {
  Moving moving{.content = load.content, .plain = {load.rows.size(1), load.rows.dtype()}};
  moving.rows = ctx_.activation(load.rows.shape(), load.rows.dtype());
  ops::embedding_forward(piece.sorted_N, load.rows, moving.rows, ctx_.stream);
  if (ways_.plan.r == 1) return moving;
  const Tensor sorted = moving.rows;
  meet(moving, sorted, piece, true, {});
  moving.sum_NR = piece.sum_NR;
  return moving;
}

void PassWalk::combine(Moving& moving, const Piece& piece) const {
  if (ranks_.ep->size() == 1) return;
  const auto [width, dtype] = moving.plain;
  const Tensor came = moving.rows, sum_NR = std::exchange(moving.sum_NR, {});
  Tensor whole = came, sent;
  if (sum_NR.defined()) whole = ctx_.activation({piece.received_rows(), width}, dtype);
  moving.is_encoded = exchange_.is_hooked(ways_.mean_rows, width, dtype, moving.content);
  sent = moving.is_encoded
             ? ctx_.memory.alloc({whole.size(0), ranks_.hook->row_bytes(width, dtype)}, DType::u8,
                                 MemoryTag::communication)
             : whole;
  Prepare prepare;
  if (sum_NR.defined() || moving.is_encoded) {
    prepare = [came, whole, sent, sum_NR, before = moving.work, memory = &ctx_.memory,
               hook = moving.is_encoded ? ranks_.hook : nullptr](Stream& stream) {
      before.follow(stream);
      if (sum_NR.defined()) ops::combine_rows(came, sum_NR, {}, {}, whole, stream);
      if (!hook) return;
      ops::copy(hooked(*hook, ExpertPlace::before_combine, whole, *memory, stream), sent, stream);
    };
  }
  cross(moving, sent, piece, true, prepare);
  moving.held.insert(moving.held.end(), {came, whole});
}

void PassWalk::stand_behind(std::vector<Work> sums) const {
  if (ranks_.ep->size() == 1) return;  // there is no such lane
  ranks_.ep->then(
      [sums = std::move(sums)](Stream& stream) {
        for (const Work& sum : sums) sum.follow(stream);
      },
      ctx_.stream);
}

void PassWalk::come_home(const Moving& moving, const Tensor& rows) const {
  moving.work.wait(ctx_.stream);
  if (moving.sum_NR.defined()) {
    return ops::combine_rows(moving.rows, moving.sum_NR, {}, {}, rows, ctx_.stream);
  }
  ops::copy(moving.is_encoded ? ranks_.hook->at(ExpertPlace::after_combine, moving.rows, ctx_)
                              : moving.rows,
            rows, ctx_.stream);
}

// ---- The calls ----------------------------------------------------------------------------------

void PassWalk::cross(Moving& moving, const Tensor& sent, const Piece& piece, bool back,
                     const Prepare& prepare) const {
  const auto [width, dtype] = moving.plain;
  const std::int64_t row_payload =
      moving.is_encoded ? width * static_cast<std::int64_t>(size_of(dtype)) : 0;
  if (prepare) ranks_.ep->then(prepare, ctx_.stream);
  if (ways_.plan.node > 1) {
    TwoLevel::Counts counts = piece.all_sent;
    if (back) {
      for (std::size_t i = 0; i < counts.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) std::swap(counts[i][j], counts[j][i]);
      }
    }
    TwoLevel::Arriving arriving =
        TwoLevel(*ranks_.ep, ways_.plan.node).exchange(sent, counts, row_payload, ctx_);
    moving.rows = std::move(arriving.rows);
    moving.work = std::move(arriving.work);
    moving.held.insert(moving.held.end(), arriving.held.begin(), arriving.held.end());
  } else {
    const auto& out = back ? piece.received : piece.sent;
    const auto& in = back ? piece.sent : piece.received;
    moving.rows = ctx_.activation({total_rows(in), sent.size(1)}, sent.dtype());
    moving.work =
        ranks_.ep->all_to_all(sent, moving.rows, out, in, ctx_.stream, row_payload * sent.size(0));
  }
  moving.held.push_back(sent);
}

void PassWalk::meet(Moving& moving, const Tensor& sent, const Piece& piece, bool back,
                    const Prepare& prepare) const {
  const auto& out = back ? piece.taken : piece.given;
  const auto& in = back ? piece.given : piece.taken;
  const Tensor rows = ctx_.activation({total_rows(in), sent.size(1)}, sent.dtype());
  if (ways_.plan.networks == 1 && ranks_.ep->size() > 1) {
    // In the lane of ep. What etp then does, it does there, so that nobody else calls it meanwhile.
    const auto ended = std::make_shared<WorkState>(WorkState::OnEnd());
    ranks_.ep->then(
        [prepare, sent, rows, out, in, ended, etp = ranks_.etp](Stream& stream) {
          std::exception_ptr failure;
          try {
            if (prepare) prepare(stream);
            etp->all_to_all(sent, rows, out, in, stream).follow(stream);
          } catch (...) {
            failure = std::current_exception();
          }
          ended->finish(failure);
          if (failure) std::rethrow_exception(failure);
        },
        ctx_.stream);
    moving.work = Work(ended);
  } else {
    if (prepare) ranks_.etp->then(prepare, ctx_.stream);
    moving.work = ranks_.etp->all_to_all(sent, rows, out, in, ctx_.stream);
  }
  moving.rows = rows;
  moving.held.push_back(sent);
}

}  // namespace heddle
