#include "parallel/sequence/context_walk.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/query_sums.h"
#include "parallel/sequence/piece_parts.h"

namespace heddle {
namespace {

using Own = ContextProgram::Own;
using Held = ContextProgram::Held;

}  // namespace

PieceTensors ContextWalk::box(const PieceRows& rows) {
  return part_of(piece(rows.piece), rows.first, rows.count, rows.heads);
}

ContextWalk::ContextWalk(const Setting& setting, std::vector<PieceTensors> own, Communicator& ranks,
                         Ctx& ctx)
    : setting_(setting), ranks_(ranks), ctx_(ctx), pieces_(std::move(own)) {
  pieces_.resize(setting.program.pieces.size());
}

PieceTensors ContextWalk::allocate(PieceKind kind, std::int64_t tokens, std::int64_t heads,
                                   DType dtype) const {
  return allocate_parts(parts_of(kind), tokens, heads, setting_.head_dim, dtype, ctx_);
}

PieceTensors ContextWalk::allocate(const Message& message, DType dtype) const {
  return allocate_parts(parts_of(message), tokens_in(message.tokens), message.heads.count,
                        setting_.head_dim, dtype, ctx_);
}

DType ContextWalk::travels_as(const Message& message) const {
  return message.is_partial ? wide() : setting_.dtype;
}

void ContextWalk::clear(int index) {
  if (described(index).is_cleared && !begin_sums(index)) clear_rows(piece(index));
}

void ContextWalk::clear_rows(PieceTensors& results) {
  results.has_rows = true;
  const bool are_all_rows = results.buffers[0].defined() && !results.statistics[0].defined();
  if (are_all_rows) return ops::fill(results.buffers[0], 0.0, ctx_.stream);
  for (const Tensor& rows : results.rows) {
    if (rows.defined()) ops::fill(rows, 0.0, ctx_.stream);
  }
  if (results.statistics[0].defined()) {
    ops::fill(results.statistics[0], -std::numeric_limits<double>::infinity(), ctx_.stream);
  }
}

bool ContextWalk::begin_sums(int index) {
  const Piece& what = described(index);
  if (what.kind != PieceKind::query_grads || what.row_multiple == 0) return false;
  const Tensor& q = piece(Own::kQueries).rows[0];  // as all queries of the walk
  const std::int64_t tile = ops::query_sum_tile(q, ctx_.stream);
  if (tile == 0 || what.row_multiple % tile != 0) return false;
  const std::int64_t tiles = (tokens_in(what.tokens) + tile - 1) / tile;
  piece(index).sums =
      ctx_.workspace({1, what.heads.count, tiles, tile * setting_.head_dim}, wide());
  ops::fill(piece(index).sums, 0.0, ctx_.stream);
  piece(index).has_rows = false;
  return true;
}

void ContextWalk::end_sums(int index) {
  PieceTensors& results = piece(index);
  if (!results.sums.defined()) return;
  ops::query_grads_of_sums(results.sums, setting_.rule.scale,
                           results.has_rows ? ops::QueryGrads::added : ops::QueryGrads::written,
                           results.rows[0], ctx_.stream);
  results.sums = {};
  results.has_rows = true;
}

void ContextWalk::copy(const PieceTensors& from, const PieceTensors& to,
                       std::vector<ops::Copied>& copied) {
  const auto each = [&](const Tensor& source, const Tensor& target) {
    if (source.defined() && target.defined()) copied.push_back({source, target});
  };
  for (std::size_t i = 0; i < from.rows.size(); ++i) each(from.rows[i], to.rows[i]);
  for (std::size_t i = 0; i < from.statistics.size(); ++i) {
    each(from.statistics[i], to.statistics[i]);
  }
}

void ContextWalk::add(const std::vector<Added>& all) {
  std::vector<ops::Summed> sums;
  for (const auto& [rows, from] : all) {
    if (!piece(rows.piece).has_rows) clear_rows(piece(rows.piece));
    const PieceTensors to = box(rows);
    const bool have_lse = from.front().statistics[0].defined() && to.statistics[0].defined();
    if (described(rows.piece).kind == PieceKind::outputs && have_lse) {
      std::vector<ops::PartialRows> parts;
      for (const PieceTensors& part : from) parts.push_back({part.rows[0], part.statistics[0]});
      ops::attention_merge_all(parts, to.rows[0], to.statistics[0], ctx_.stream);
      continue;
    }
    for (std::size_t i = 0; i < to.rows.size(); ++i) {
      if (!to.rows[i].defined() || !from.front().rows[i].defined()) continue;
      ops::Summed& sum = sums.emplace_back();
      for (const PieceTensors& part : from) sum.from.push_back(part.rows[i]);
      sum.to = to.rows[i];
    }
  }
  ops::accumulate_all(sums, ctx_.stream);
}

template <class Visit>
void ContextWalk::for_each_part(const Transfer& transfer, const PieceTensors& message,
                                const Visit& visit) {
  std::int64_t at = 0;
  for (const PieceRows& rows : transfer.rows) {
    visit(part_of(message, at, rows.count, {0, rows.heads.count}), box(rows));
    at += rows.count;
  }
}

PieceTensors ContextWalk::put_together(const Transfer& transfer, std::vector<ops::Copied>& copied) {
  const Message& message = transfer.message;
  // What is added up is rounded once, when it is complete.
  const bool is_sum = is_result(piece_kind_of(message.content));
  const PieceTensors made = allocate(message, is_sum ? wide() : travels_as(message));
  const bool is_rounded = made.buffers[0].dtype() != travels_as(message);
  std::vector<ops::Copied> at_once;
  for_each_part(transfer, made, [&](const PieceTensors& part, const PieceTensors& rows) {
    std::vector<ops::Copied>& to = is_rounded ? at_once : copied;
    // dO alone lies second among the tensors of queries.
    if (message.content == Content::out_grad) {
      to.push_back({rows.rows[1], part.rows[0]});
    } else {
      copy(rows, part, to);
    }
  });
  if (!is_rounded) return made;
  ops::copy_all(at_once, ctx_.stream);
  const PieceTensors rounded = allocate(message, travels_as(message));
  ops::cast(made.buffers[0], rounded.buffers[0], ctx_.stream);
  return rounded;
}

PieceTensors ContextWalk::what_is_sent(const Transfer& transfer, const std::vector<UnderWay>& sent,
                                       std::vector<ops::Copied>& copied) {
  if (transfer.piece >= 0) return piece(transfer.piece);
  const auto same = std::ranges::find_if(
      sent, [&](const UnderWay& other) { return carry_the_same(other.transfer, transfer); });
  return same != sent.end() ? same->tensors : put_together(transfer, copied);
}

ContextWalk::UnderWay ContextWalk::receive(const Transfer& transfer) {
  const Message& message = transfer.message;
  UnderWay received{transfer, allocate(message, travels_as(message))};
  for (const Tensor& buffer : received.tensors.buffers) {
    if (buffer.defined()) received.works.push_back(ranks_.recv(buffer, message.peer, ctx_.stream));
  }
  return received;
}

void ContextWalk::put_away(UnderWay& received) {
  const Transfer& transfer = received.transfer;
  const Message& message = transfer.message;
  if (transfer.piece >= 0) {
    piece(transfer.piece) = std::move(received.tensors);
    return;
  }
  if (is_result(piece_kind_of(message.content))) {
    waiting_.push_back(std::move(received));
    return;
  }
  std::vector<ops::Copied> copied;
  for_each_part(transfer, received.tensors,
                [&](const PieceTensors& part, const PieceTensors& rows) {
                  if (message.content == Content::out_grad) {
                    copied.push_back({part.rows[0], rows.rows[1]});
                  } else {
                    copy(part, rows, copied);
                  }
                });
  ops::copy_all(copied, ctx_.stream);
}

void ContextWalk::put_waiting_away() {
  for (UnderWay& received : waiting_) {
    PieceTensors& tensors = received.tensors;
    if (tensors.buffers[0].dtype() == wide()) continue;
    const PieceTensors rounded =
        std::exchange(tensors, allocate(received.transfer.message, wide()));
    ops::cast(rounded.buffers[0], tensors.buffers[0], ctx_.stream);
  }
  std::vector<Added> all;
  for (const UnderWay& received : waiting_) {
    std::int64_t at = 0;
    for (const PieceRows& rows : received.transfer.rows) {
      auto same = std::ranges::find(all, rows, &Added::to);
      if (same == all.end()) same = all.insert(same, {rows, {}});
      same->from.push_back(part_of(received.tensors, at, rows.count, {0, rows.heads.count}));
      at += rows.count;
    }
  }
  add(all);
  waiting_.clear();
}

ContextWalk::Exchange ContextWalk::begin(const ProgramRound& round, bool only_share) {
  Exchange begun;
  ranks_.begin_group();
  for (const Transfer& transfer : round.receives) {
    if (transfer.fills_share || !only_share) begun.received.push_back(receive(transfer));
  }
  std::vector<ops::Copied> copied;
  for (const Transfer& transfer : round.sends) {
    if (!transfer.fills_share && only_share) continue;
    begun.sent.push_back({transfer, what_is_sent(transfer, begun.sent, copied)});
  }
  ops::copy_all(copied, ctx_.stream);
  for (UnderWay& message : begun.sent) {
    for (const Tensor& buffer : message.tensors.buffers) {
      if (!buffer.defined()) continue;
      message.works.push_back(ranks_.send(buffer, message.transfer.message.peer, ctx_.stream));
    }
  }
  ranks_.end_group();
  return begun;
}

template <class Do>
void ContextWalk::timed(Seconds which, const Do& work) {
  const bool is_timed = setting_.meter != nullptr && setting_.meter->is_on() &&
                        ctx_.stream.device().kind == Device::Kind::cpu;
  if (!is_timed) return work();
  const Stopwatch watch;
  work();
  AttentionTimes& times = setting_.meter->of(setting_.layer);
  (times.*which)[static_cast<std::size_t>(setting_.pass)] += watch.seconds();
}

void ContextWalk::end(Exchange& exchange, bool puts_away) {
  const auto wait = [&](const UnderWay& message) {
    for (const Work& work : message.works) work.wait(ctx_.stream);
  };
  for (UnderWay& message : exchange.received) {
    timed(&AttentionTimes::exposed, [&] { wait(message); });
    put_away(message);
  }
  if (puts_away) put_waiting_away();
  if (exchange.sent.empty()) return;
  timed(&AttentionTimes::exposed, [&] {
    for (const UnderWay& message : exchange.sent) wait(message);
  });
}

void ContextWalk::compute(const TileCall& call) {
  ops::AttentionMask mask{.query_offset = std::max<std::int64_t>(call.ahead, 0),
                          .first_key_BS = {},
                          .key_offset = std::max<std::int64_t>(-call.ahead, 0),
                          .jump = call.jump,
                          .jump_at = call.jump_at};
  if (call.has_window_edge()) {
    const Tensor first_keys = ctx_.workspace({1, call.queries.count}, DType::i32);
    mask = ops::in_window(mask, *call.window, first_keys, ctx_.stream);
  }
  const PieceTensors queries = box(call.queries), keys = box(call.keys);
  const PieceTensors results = box(call.results);
  if (setting_.pass == ContextPassKind::forward) {
    ops::attention_block_forward(queries.rows[0], keys.rows[0], keys.rows[1], mask, setting_.rule,
                                 call.is_first ? ops::KeyBlock::first : ops::KeyBlock::further,
                                 results.rows[0], results.statistics[0], ctx_.stream);
    return;
  }
  const PieceTensors key_results = box(call.key_results);
  if (results.sums.defined()) {
    ops::attention_block_backward_to_sums(queries.rows[1], queries.rows[0], keys.rows[0],
                                          keys.rows[1], queries.statistics[0],
                                          queries.statistics[1], mask, setting_.rule, results.sums,
                                          key_results.rows[0], key_results.rows[1], ctx_.stream);
    return;
  }
  ops::attention_block_backward(queries.rows[1], queries.rows[0], keys.rows[0], keys.rows[1],
                                queries.statistics[0], queries.statistics[1], mask, setting_.rule,
                                results.rows[0], key_results.rows[0], key_results.rows[1],
                                ctx_.stream);
}

void ContextWalk::join_keys(const ProgramRound& round) {
  std::vector<ops::Copied> copied;
  for (const auto& [from, to] : round.joined) copy(box(from), box(to), copied);
  ops::copy_all(copied, ctx_.stream);
  copied.clear();  // it holds what is spent
  for (const int index : round.spent) piece(index) = {};
}

void ContextWalk::take_own_key_grads(const ProgramRound& round) {
  std::vector<ops::Copied> copied;
  for (const auto& [from, to] : round.written) copy(box(from), box(to), copied);
  ops::copy_all(copied, ctx_.stream);
  std::vector<Added> added;
  for (const auto& [from, to] : round.added) added.push_back({to, {box(from)}});
  add(added);
}

void ContextWalk::play(const ProgramRound& round) {
  for (const int index : round.begins) {
    const Piece& what = described(index);
    piece(index) = allocate(what.kind, tokens_in(what.tokens), what.heads.count,
                            is_result(what.kind) ? wide() : setting_.dtype);
    if (is_result(what.kind)) clear(index);
  }
  join_keys(round);
  Exchange exchange = begin(round, false);
  for (const TileCall& tile : round.tiles) compute(tile);
  for (const int index : round.summed) end_sums(index);
  take_own_key_grads(round);
  end(exchange, round.puts_away);
  for (const int index : round.ends) piece(index) = {};
}

void ContextWalk::take_own() {
  std::vector<ops::Copied> copied;
  const auto take = [&](const std::vector<RowsInTwo>& here) {
    for (const auto& [held, share] : here) copy(box(held), box(share), copied);
  };
  take(setting_.program.queries_here);
  take(setting_.program.keys_here);
  ops::copy_all(copied, ctx_.stream);
}

void ContextWalk::bring_own_home() {
  std::vector<Added> added;
  const auto bring = [&](const std::vector<RowsInTwo>& here, int from, int to) {
    for (auto [held, share] : here) {
      share.piece = from;
      held.piece = to;
      added.push_back({held, {box(share)}});
    }
  };
  bring(setting_.program.queries_here, Own::kResults, Held::kHeldResults);
  if (setting_.pass == ContextPassKind::backward) {
    bring(setting_.program.keys_here, Own::kKeyResults, Held::kHeldKeyResults);
  }
  add(added);
}

void ContextWalk::run() {
  timed(&AttentionTimes::seconds, [&] { walk(); });
}

void ContextWalk::walk() {
  const ContextProgram& program = setting_.program;
  for (const int results : {Own::kResults, Own::kKeyResults}) clear(results);
  if (program.exchanges_heads) {
    for (const int results : {Held::kHeldResults, Held::kHeldKeyResults}) clear(results);
    take_own();
  }
  for (std::size_t round = 0; round < program.rounds.size(); ++round) {
    if (setting_.pass == ContextPassKind::backward && round == program.delta_round) {
      const PieceTensors& own = piece(Own::kQueries);
      ops::attention_delta(own.rows[1], setting_.output, own.statistics[1], ctx_.stream);
    }
    ranks_.flight().set_attention_round(static_cast<int>(round));
    play(program.rounds[round]);
  }
  ranks_.flight().set_attention_round(-1);
  if (program.exchanges_heads) bring_own_home();
}

void ContextWalk::fill_share() {
  timed(&AttentionTimes::seconds, [&] {
    take_own();
    const std::vector<ProgramRound>& rounds = setting_.program.rounds;
    for (std::size_t round = 0; round < rounds.size(); ++round) {
      ranks_.flight().set_attention_round(static_cast<int>(round));
      Exchange exchange = begin(rounds[round], true);
      end(exchange, true);
    }
    ranks_.flight().set_attention_round(-1);
  });
}

}  // namespace heddle
