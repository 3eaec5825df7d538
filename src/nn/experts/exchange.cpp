#include "nn/experts/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "ops/elementwise.h"
#include "tensor/memory.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

/// Integers that the host makes: where it writes them, and put() brings them to their place.
class HostMade {
 public:
  explicit HostMade(const Tensor& t)
      : there_(t),
        here_(t.device().kind == Device::Kind::cpu
                  ? t
                  : Memory().alloc(t.shape(), t.dtype(), MemoryTag::workspace)) {}
  std::span<std::int32_t> values() const { return here_.host<std::int32_t>(); }
  void put(Ctx& ctx) const {
    if (here_.bytes() != there_.bytes()) ops::copy(here_, there_, ctx.stream);
  }

 private:
  Tensor there_, here_;
};

/// The part of n that comes before the index-th of so many pieces.
std::int64_t before(std::int64_t n, int index, int pieces) { return n * index / pieces; }

/// In host memory, whatever the device and also where nothing else is.
Tensor plan_tensor(const ExchangePlan& plan) {
  const std::int32_t numbers[] = {plan.r,    plan.degree_forward, plan.degree_backward,
                                  plan.node, plan.networks,       plan.sends_again ? 1 : 0};
  static_assert(sizeof numbers == ExpertExchange::kPlanBytes);
  std::shared_ptr<std::byte> bytes(new std::byte[sizeof numbers],
                                   std::default_delete<std::byte[]>());
  const Tensor tensor(std::move(bytes), 0, {std::ssize(numbers)}, DType::i32);
  std::ranges::copy(numbers, tensor.host<std::int32_t>().begin());
  return tensor;
}

}  // namespace

std::int64_t total_rows(const std::vector<std::int64_t>& by_rank) {
  return std::accumulate(by_rank.begin(), by_rank.end(), std::int64_t{0});
}

std::int64_t ExpertExchange::Piece::received_rows() const { return total_rows(received); }

ExpertExchange::ExpertExchange(ExpertRanks ranks, std::int64_t experts, std::string name)
    : ranks_(std::move(ranks)), experts_(experts), name_(std::move(name)) {
  HEDDLE_CHECK(experts % ranks_.ep->size() == 0, "{} experts on {} ranks", experts,
               ranks_.ep->size());
}

// ---- What is known of a micro-batch -------------------------------------------------------------

std::int64_t ExpertExchange::count(const Tensor& counts, int s, int p, std::int64_t expert) const {
  const std::int64_t rank = std::int64_t{s} * ranks_.ep->size() + p;
  return counts.data<std::int32_t>()[rank * (experts_ + 1) + expert];
}

ExpertExchange::Decision ExpertExchange::decide(const Tensor& offsets_E1, std::int64_t rows,
                                                Ctx& ctx) const {
  ExchangeChoice& choice = *ranks_.choice;
  // Where rows of experts end, since a device knows that; the host makes counts of it.
  const Tensor own = ctx.activation({experts_ + 1}, DType::i32);
  ops::copy(offsets_E1.slice(0, 1, experts_ + 1), own.slice(0, 0, experts_), ctx.stream);
  ops::fill(own.slice(0, experts_, experts_ + 1), choice.microseconds(), ctx.stream);
  Tensor all = ctx.activation({ranks_.ep->size() * own.count()}, DType::i32);
  ranks_.ep->all_gather(own, all, ctx.stream).wait(ctx.stream);
  if (ranks_.etp->size() > 1) {
    const Tensor of_ep = all;
    all = ctx.activation({ranks_.etp->size() * of_ep.count()}, DType::i32);
    ranks_.etp->all_gather(of_ep, all, ctx.stream).wait(ctx.stream);
  }
  if (ctx.stream.is_dry()) return {all, plan_tensor(choice.next(rows / experts_))};
  all = to_host(all, ctx.stream);
  const auto ends = all.host<std::int32_t>();
  for (auto at = ends.begin(); at != ends.end(); at += experts_ + 1) {
    std::adjacent_difference(at, at + experts_, at);
  }
  std::int64_t capacity = 0;
  std::int32_t slowest = 0;
  for (int s = 0; s < ranks_.etp->size(); ++s) {
    for (int p = 0; p < ranks_.ep->size(); ++p) {
      for (std::int64_t e = 0; e < experts_; ++e)
        capacity = std::max(capacity, count(all, s, p, e));
      slowest = std::max(slowest, static_cast<std::int32_t>(count(all, s, p, experts_)));
    }
  }
  choice.learn(slowest);
  const ExchangePlan plan = choice.next(capacity);
  // What keeps nothing (evaluation, generation) takes less than what is said of a step.
  if (ranks_.most_rows > 0 && plan.r > 0 && ctx.keeps_dear()) require_few_rows(all, plan);
  return {all, plan_tensor(plan)};
}

ExchangePlan ExpertExchange::plan_of(const Decision& decision) {
  const auto numbers = decision.plan.host<std::int32_t>();
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5] != 0};
}

void ExpertExchange::require_few_rows(const Tensor& counts, const ExchangePlan& plan) const {
  const int P = ranks_.ep->size(), S = ranks_.etp->size(), apart = S / plan.r;
  std::vector<std::int64_t> received(static_cast<std::size_t>(P) * static_cast<std::size_t>(apart),
                                     0);
  std::int64_t all = 0;
  for (int s = 0; s < S; ++s) {
    for (int p = 0; p < P; ++p) {
      for (std::int64_t e = 0; e < experts_; ++e) {
        const std::int64_t n = count(counts, s, p, e), to = e / own_experts() * apart + s % apart;
        received[static_cast<std::size_t>(to)] += n;
        all += n;
      }
    }
  }
  const double even = static_cast<double>(all) * plan.r / (P * S);
  const auto most = std::ranges::max_element(received);
  if (static_cast<double>(*most) <= ranks_.most_rows * even) return;
  throw Error(
      ErrorCode::resources,
      fmt::format("{}: rank {} of parallel.ep would receive {} rows, {:.2f} times an even share of "
                  "{:.0f}, and parallel.ep_rows = {} allows {:.0f}",
                  name_, (most - received.begin()) / apart, *most,
                  static_cast<double>(*most) / even, even, ranks_.most_rows,
                  ranks_.most_rows * even),
      "a larger parallel.ep_rows where there is memory, a larger model.router_aux_loss, or a "
      "smaller train.microbatch");
}

std::vector<int> ExpertExchange::partners(const ExchangePlan& plan) const {
  std::vector<int> all;
  const int apart = ranks_.etp->size() / plan.r;
  for (int s = ranks_.etp->rank() % apart; s < ranks_.etp->size(); s += apart) all.push_back(s);
  return all;
}

// ---- Where rows go ------------------------------------------------------------------------------

void ExpertExchange::allocate(Piece& piece, std::int64_t received, std::int64_t rows, int r,
                              Ctx& ctx) const {
  piece.offsets_O1 = ctx.activation({own_experts() + 1}, DType::i32);
  piece.arrived_N = ctx.activation({rows}, DType::i32);
  piece.sorted_N = ctx.activation({rows}, DType::i32);
  piece.each_N1 = ctx.activation({rows, 1}, DType::i32);
  if (r > 1) piece.sum_NR = ctx.activation({received, r}, DType::i32);
}

ExpertExchange::Piece ExpertExchange::dry_piece(const ExchangePlan& plan, std::int64_t rows,
                                                Ctx& ctx) const {
  const int P = ranks_.ep->size(), own = ranks_.ep->rank();
  Piece piece;
  const auto more = static_cast<std::int64_t>(
      P > 1 ? std::ceil((ranks_.planned_rows - 1.0) * static_cast<double>(rows)) : 0);
  for (int p = 0; p < P; ++p) {
    piece.sent.push_back(before(rows, p + 1, P) - before(rows, p, P));
    const int other = p < own ? p : p - 1;
    piece.received.push_back(piece.sent.back());
    if (p != own) {
      piece.received.back() += before(more, other + 1, P - 1) - before(more, other, P - 1);
    }
  }
  if (plan.node > 1) {
    piece.all_sent.assign(static_cast<std::size_t>(P), piece.sent);
    for (int p = 0; p < P; ++p) {
      auto& of_rank = piece.all_sent[static_cast<std::size_t>(p)];
      of_rank[static_cast<std::size_t>(own)] = piece.received[static_cast<std::size_t>(p)];
    }
  }
  const std::int64_t received = piece.received_rows();
  if (plan.r > 1) {
    piece.given.assign(static_cast<std::size_t>(ranks_.etp->size()), 0);
    for (const int s : partners(plan)) piece.given[static_cast<std::size_t>(s)] = received;
    piece.taken = piece.given;
  }
  allocate(piece, received, received * plan.r, plan.r, ctx);
  return piece;
}

ExpertExchange::Piece ExpertExchange::piece(const Decision& decision, const ExchangePlan& plan,
                                            int index, int degree,
                                            std::vector<std::int32_t>& whole_N, Ctx& ctx) const {
  const int P = ranks_.ep->size(), p0 = ranks_.ep->rank(), s0 = ranks_.etp->rank();
  const std::int64_t O = own_experts(), first = O * p0;
  const auto in_piece = [&](int s, int p, std::int64_t e) {
    const std::int64_t n = count(decision.counts, s, p, e);
    return before(n, index + 1, degree) - before(n, index, degree);
  };
  const auto for_rank = [&](int s, int from, int to) {
    std::int64_t rows = 0;
    for (std::int64_t e = O * to; e < O * (to + 1); ++e) rows += in_piece(s, from, e);
    return rows;
  };
  Piece piece;
  for (int p = 0; p < P; ++p) {
    piece.sent.push_back(for_rank(s0, p0, p));
    piece.received.push_back(for_rank(s0, p, p0));
    if (plan.node == 1) continue;
    auto& of_rank = piece.all_sent.emplace_back();
    for (int to = 0; to < P; ++to) of_rank.push_back(for_rank(s0, p, to));
  }
  const std::int64_t own_rows = piece.received_rows();
  const std::vector<int> partners = this->partners(plan);
  if (plan.r > 1) {
    piece.given.assign(static_cast<std::size_t>(ranks_.etp->size()), 0);
    piece.taken = piece.given;
    for (const int s : partners) {
      piece.given[static_cast<std::size_t>(s)] = own_rows;
      for (int p = 0; p < P; ++p) {
        piece.taken[static_cast<std::size_t>(s)] += for_rank(s, p, p0);
      }
    }
  }
  allocate(piece, own_rows, plan.r > 1 ? total_rows(piece.taken) : own_rows, plan.r, ctx);

  // What arrives is sorted by rank of etp, rank of ep and expert; computed on are rows by expert,
  // then by rank in the order of tokens: ep, then etp.
  const HostMade made_offsets(piece.offsets_O1), made_sorted(piece.sorted_N),
      made_arrived(piece.arrived_N), made_each(piece.each_N1);
  const auto offsets = made_offsets.values();
  const auto R = partners.size();
  std::vector<std::int32_t> next(static_cast<std::size_t>(O) * static_cast<std::size_t>(P) * R);
  std::vector<std::int32_t> whole(next.size());
  std::int32_t at = 0, whole_at = 0;
  const auto cell = [&](std::int64_t e, int p, std::size_t k) {
    return (static_cast<std::size_t>(e) * static_cast<std::size_t>(P) +
            static_cast<std::size_t>(p)) *
               R +
           k;
  };
  for (std::int64_t e = 0; e < O; ++e) {
    offsets[static_cast<std::size_t>(e)] = at;
    for (int p = 0; p < P; ++p) {
      for (std::size_t k = 0; k < R; ++k) {
        const std::int64_t all = count(decision.counts, partners[k], p, first + e);
        next[cell(e, p, k)] = at;
        whole[cell(e, p, k)] = whole_at + static_cast<std::int32_t>(before(all, index, degree));
        const auto here = static_cast<std::int32_t>(in_piece(partners[k], p, first + e));
        for (std::int32_t i = 0; i < here; ++i) whole_N.push_back(whole[cell(e, p, k)] + i);
        at += here;
        whole_at += static_cast<std::int32_t>(all);
      }
    }
  }
  offsets[static_cast<std::size_t>(O)] = at;
  std::int32_t arrived = 0;
  for (std::size_t k = 0; k < R; ++k) {
    for (int p = 0; p < P; ++p) {
      for (std::int64_t e = 0; e < O; ++e) {
        for (std::int64_t i = in_piece(partners[k], p, first + e); i > 0; --i, ++arrived) {
          const std::int32_t sorted = next[cell(e, p, k)]++;
          made_sorted.values()[static_cast<std::size_t>(arrived)] = sorted;
          made_arrived.values()[static_cast<std::size_t>(sorted)] = arrived;
        }
      }
    }
  }
  std::iota(made_each.values().begin(), made_each.values().end(), 0);
  for (const HostMade* made : {&made_offsets, &made_sorted, &made_arrived, &made_each}) {
    made->put(ctx);
  }
  if (plan.r > 1) {
    const HostMade made_parts(piece.sum_NR);
    const auto parts = made_parts.values();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i % R) * own_rows +
                                           static_cast<std::int64_t>(i / R));
    }
    made_parts.put(ctx);
  }
  return piece;
}

/// Pieces take a stretch of every expert's rows here, so that rows are reordered before they leave.
void ExpertExchange::cut_own(const Decision& decision, Ways& ways, std::int64_t rows,
                             Ctx& ctx) const {
  if (ways.degree == 1) return;
  ways.piece_row_R = ctx.activation({rows}, DType::i32);
  ways.row_of_R = ctx.activation({rows}, DType::i32);
  if (ctx.stream.is_dry()) return;
  const HostMade made_place(ways.piece_row_R), made_row(ways.row_of_R);
  const auto place = made_place.values(), row = made_row.values();
  std::int32_t at = 0;
  for (int index = 0; index < ways.degree; ++index) {
    std::int64_t begin = 0;
    for (std::int64_t e = 0; e < experts_; ++e) {
      const std::int64_t n = count(decision.counts, ranks_.etp->rank(), ranks_.ep->rank(), e);
      for (std::int64_t i = before(n, index, ways.degree); i < before(n, index + 1, ways.degree);
           ++i, ++at) {
        place[static_cast<std::size_t>(begin + i)] = at;
        row[static_cast<std::size_t>(at)] = static_cast<std::int32_t>(begin + i);
      }
      begin += n;
    }
  }
  // Rows of no expert stay where they are.
  for (; at < static_cast<std::int32_t>(rows); ++at) {
    place[static_cast<std::size_t>(at)] = row[static_cast<std::size_t>(at)] = at;
  }
  made_place.put(ctx);
  made_row.put(ctx);
}

ExpertExchange::Ways ExpertExchange::ways(const Decision& decision, int degree, std::int64_t rows,
                                          Ctx& ctx) const {
  Ways ways{.plan = plan_of(decision), .degree = degree, .mean_rows = rows};
  if (!ctx.stream.is_dry()) {
    std::int64_t all = 0;
    for (int p = 0; p < ranks_.ep->size(); ++p) {
      for (std::int64_t e = 0; e < experts_; ++e) {
        all += count(decision.counts, ranks_.etp->rank(), p, e);
      }
    }
    ways.mean_rows = all / ranks_.ep->size();
  }
  std::int64_t from = 0, begin = 0;
  for (int index = 0; index < degree; ++index) {
    ways.pieces.push_back(
        ctx.stream.is_dry()
            ? dry_piece(ways.plan, before(rows, index + 1, degree) - before(rows, index, degree),
                        ctx)
            : piece(decision, ways.plan, index, degree, ways.whole_N, ctx));
    Piece& made = ways.pieces.back();
    made.from = std::exchange(from, from + total_rows(made.sent));
    made.to = from;
    made.begin = std::exchange(begin, begin + made.sorted_N.count());
    made.end = begin;
  }
  cut_own(decision, ways, rows, ctx);
  return ways;
}

Tensor ExpertExchange::reordered(const Ways& from, const Ways& to, Ctx& ctx) {
  if (from.degree == to.degree) return {};
  const Tensor index_N = ctx.activation({to.rows()}, DType::i32);
  if (ctx.stream.is_dry()) return index_N;
  std::vector<std::int32_t> row(from.whole_N.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[static_cast<std::size_t>(from.whole_N[i])] = static_cast<std::int32_t>(i);
  }
  const HostMade made(index_N);
  const auto index = made.values();
  for (std::size_t i = 0; i < index.size(); ++i) {
    index[i] = row[static_cast<std::size_t>(to.whole_N[i])];
  }
  made.put(ctx);
  return index_N;
}

// ---- What a dry run calls -----------------------------------------------------------------------

bool ExpertExchange::is_hooked(std::int64_t mean_rows, std::int64_t width, DType dtype,
                               Content content) const {
  return ranks_.hook && content == Content::rows && ranks_.ep->size() > 1 &&
         ranks_.hook->takes(mean_rows * width * static_cast<std::int64_t>(size_of(dtype)));
}

LayerCall ExpertExchange::over_ep(std::int64_t rows, std::int64_t width, DType dtype,
                                  Content content) const {
  LayerCall call{.over = ranks_.ep,
                 .op = CommOp::all_to_all,
                 .bytes = rows * width * static_cast<std::int64_t>(size_of(dtype))};
  if (is_hooked(rows, width, dtype, content)) {
    call.payload = std::exchange(call.bytes, rows * ranks_.hook->row_bytes(width, dtype));
  }
  return call;
}

std::vector<LayerCall> ExpertExchange::calls_there(const ExchangePlan& plan, int degree,
                                                   std::int64_t rows, std::int64_t width,
                                                   DType dtype, Content content) const {
  std::vector<LayerCall> calls;
  for (int index = 0; index < degree; ++index) {
    const std::int64_t own = before(rows, index + 1, degree) - before(rows, index, degree);
    if (ranks_.ep->size() > 1) {
      calls.insert(calls.end(), plan.node > 1 ? 2 : 1, over_ep(own, width, dtype, content));
    }
    if (plan.r > 1) {
      calls.push_back({.over = ranks_.etp,
                       .op = CommOp::all_to_all,
                       .bytes = plan.r * own * width * static_cast<std::int64_t>(size_of(dtype))});
    }
  }
  return calls;
}

std::vector<LayerCall> ExpertExchange::calls_back(const ExchangePlan& plan, int degree,
                                                  std::int64_t rows, std::int64_t width,
                                                  DType dtype, Content content) const {
  auto calls = calls_there(plan, degree, rows, width, dtype, content);
  std::ranges::reverse(calls);
  return calls;
}

std::vector<LayerCall> ExpertExchange::counts_calls() const {
  std::vector<LayerCall> calls;
  std::int64_t bytes = (experts_ + 1) * static_cast<std::int64_t>(size_of(DType::i32));
  for (const Communicator* const over : {ranks_.ep, ranks_.etp}) {
    bytes *= over->size();
    if (over->size() > 1 || over == ranks_.ep) {
      calls.push_back({.over = over, .op = CommOp::all_gather, .bytes = bytes, .is_dear = true});
    }
  }
  return calls;
}

}  // namespace heddle
