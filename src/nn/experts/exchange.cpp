#include "nn/experts/exchange.h"

#include <numeric>
#include <span>

#include "base/check.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "tensor/memory.h"

namespace heddle {
namespace {

/// Integers where the host can read and write them: themselves, or of a GPU a copy, which waits for
/// what makes them.
Tensor host_copy(const Tensor& t, Ctx& ctx) {
  if (t.device().kind == Device::Kind::cpu) return t;
  const Tensor copy = Memory().alloc(t.shape(), t.dtype(), MemoryTag::workspace);
  ops::copy(t, copy, ctx.stream);
  return copy;
}

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

}  // namespace

ExpertExchange::ExpertExchange(Communicator& ranks, std::int64_t experts)
    : ranks_(ranks), experts_(experts) {
  HEDDLE_CHECK(experts % ranks.size() == 0, "{} experts on {} ranks", experts, ranks.size());
}

Tensor ExpertExchange::gather_counts(const Tensor& offsets_E1, Ctx& ctx) const {
  const Tensor own = ctx.activation({experts_}, DType::i32);
  if (!ctx.stream.is_dry()) {
    const Tensor on_host = host_copy(offsets_E1, ctx);
    const auto offsets = on_host.host<std::int32_t>();
    const HostMade counts(own);
    for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
      counts.values()[e] = offsets[e + 1] - offsets[e];
    }
    counts.put(ctx);
  }
  const Tensor all = ctx.activation({ranks_.size() * experts_}, DType::i32);
  ranks_.all_gather(own, all, ctx.stream).wait(ctx.stream);
  return all;
}

ExpertExchange::Ways ExpertExchange::ways(const Tensor& counts, std::int64_t rows, Ctx& ctx) const {
  const auto ranks = static_cast<std::size_t>(ranks_.size()),
             own = static_cast<std::size_t>(ranks_.rank()),
             here = static_cast<std::size_t>(own_experts()),
             all = static_cast<std::size_t>(experts_);
  Ways ways{.sent = std::vector<std::int64_t>(ranks, 0),
            .received = std::vector<std::int64_t>(ranks, 0),
            .offsets_O1 = ctx.activation({own_experts() + 1}, DType::i32),
            .arrived_N = {},
            .sorted_N = {},
            .each_N1 = {}};
  const auto allocate = [&](std::int64_t arriving) {
    ways.arrived_N = ctx.activation({arriving}, DType::i32);
    ways.sorted_N = ctx.activation({arriving}, DType::i32);
    ways.each_N1 = ctx.activation({arriving, 1}, DType::i32);
  };
  if (ctx.stream.is_dry()) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto r = static_cast<std::int64_t>(rank), n = static_cast<std::int64_t>(ranks);
      ways.sent[rank] = ways.received[rank] = rows * (r + 1) / n - rows * r / n;
    }
    allocate(rows);
    return ways;
  }
  const Tensor on_host = host_copy(counts, ctx);
  const auto count = [&](std::size_t rank, std::size_t expert) -> std::int64_t {
    return on_host.host<std::int32_t>()[rank * all + expert];
  };
  const HostMade made_offsets(ways.offsets_O1);
  const auto offsets = made_offsets.values();
  offsets[0] = 0;
  for (std::size_t e = 0; e < here; ++e) {
    std::int64_t rows_of_expert = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      ways.sent[rank] += count(own, rank * here + e);
      ways.received[rank] += count(rank, own * here + e);
      rows_of_expert += count(rank, own * here + e);
    }
    offsets[e + 1] = offsets[e] + static_cast<std::int32_t>(rows_of_expert);
  }
  allocate(offsets[here]);
  const HostMade each(ways.each_N1), sorted(ways.sorted_N), in_arrival(ways.arrived_N);
  std::iota(each.values().begin(), each.values().end(), 0);
  std::vector<std::int32_t> next(offsets.begin(), offsets.end());
  std::int32_t arrived = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t e = 0; e < here; ++e) {
      for (std::int64_t row = count(rank, own * here + e); row > 0; --row, ++arrived) {
        const std::int32_t place = next[e]++;
        sorted.values()[static_cast<std::size_t>(arrived)] = place;
        in_arrival.values()[static_cast<std::size_t>(place)] = arrived;
      }
    }
  }
  for (const HostMade* made : {&made_offsets, &each, &sorted, &in_arrival}) made->put(ctx);
  return ways;
}

Tensor ExpertExchange::dispatch(const Tensor& rows_RD, const Ways& ways, Ctx& ctx) const {
  const Shape shape{ways.rows(), rows_RD.size(1)};
  const Tensor arrived_ND = ctx.activation(shape, rows_RD.dtype());
  ranks_.all_to_all(rows_RD, arrived_ND, ways.sent, ways.received, ctx.stream).wait(ctx.stream);
  const Tensor sorted_ND = ctx.activation(shape, rows_RD.dtype());
  ops::embedding_forward(ways.arrived_N, arrived_ND, sorted_ND, ctx.stream);
  return sorted_ND;
}

Tensor ExpertExchange::combine(const Tensor& rows_ND, const Ways& ways, Ctx& ctx) const {
  const Tensor leaving_ND = ctx.activation(rows_ND.shape(), rows_ND.dtype());
  ops::embedding_forward(ways.sorted_N, rows_ND, leaving_ND, ctx.stream);
  std::int64_t rows = 0;
  for (const std::int64_t of_rank : ways.sent) rows += of_rank;
  Tensor rows_RD = ctx.activation({rows, rows_ND.size(1)}, rows_ND.dtype());
  ranks_.all_to_all(leaving_ND, rows_RD, ways.received, ways.sent, ctx.stream).wait(ctx.stream);
  return rows_RD;
}

LayerCall ExpertExchange::call(std::int64_t rows, std::int64_t width, DType dtype) const {
  return {.over = &ranks_,
          .op = CommOp::all_to_all,
          .bytes = rows * width * static_cast<std::int64_t>(size_of(dtype))};
}

LayerCall ExpertExchange::counts_call() const {
  return {.over = &ranks_,
          .op = CommOp::all_gather,
          .bytes = ranks_.size() * experts_ * static_cast<std::int64_t>(size_of(DType::i32))};
}

}  // namespace heddle
