#include "simulator/decode_plan.h"

#include <fmt/format.h>

#include <array>
#include <bit>

namespace heddle {
namespace {

constexpr std::array<std::string_view, 3> kDecodeMethods = {"tree", "ring", "gather"};
/// Rounds of a ring on more ranks take gigabytes.
constexpr int kMostDecodeRanks = 512;

class DecodeBuilder {
 public:
  explicit DecodeBuilder(const DecodeShape& shape) : shape_(shape) {
    plan_.shape = {.ranks = shape.ranks,
                   .tokens = shape.context + 1,
                   .heads = shape.heads,
                   .key_heads = shape.key_heads,
                   .head_dim = shape.head_dim};
    plan_.forward.by_rank.resize(static_cast<std::size_t>(shape.ranks));
  }

  ContextPlan build(DecodeMethod method) {
    switch (method) {
      case DecodeMethod::tree: tree(); break;
      case DecodeMethod::ring: ring(); break;
      case DecodeMethod::gather: gather(); break;
    }
    return std::move(plan_);
  }

 private:
  int wrapped(int rank) const { return (rank % shape_.ranks + shape_.ranks) % shape_.ranks; }

  /// Begins a round on all ranks.
  void begin() {
    for (auto& rounds : plan_.forward.by_rank) rounds.emplace_back();
  }
  Round& now(int rank) { return plan_.forward.by_rank[static_cast<std::size_t>(rank)].back(); }

  /// The new token against the keys of `owner`.
  void attend(int rank, int owner) {
    const TokenRun keys = decode_keys(shape_, owner);
    if (keys.count > 0) {
      now(rank).tiles.push_back({{shape_.context, 1}, keys, {0, shape_.heads}, false});
    }
  }
  void send(int from, int to, Message message) {
    message.peer = to;
    now(from).sends.push_back(message);
    message.peer = from;
    now(to).receives.push_back(std::move(message));
  }
  void send_keys(int from, int to, int owner) {
    const TokenRun keys = decode_keys(shape_, owner);
    if (keys.count == 0) return;
    send(from, to, {.content = Content::kv, .heads = {0, shape_.key_heads}, .tokens = {keys}});
  }
  void send_output(int from, int to, bool is_partial) {
    send(from, to,
         {.content = Content::out,
          .is_partial = is_partial,
          .heads = {0, shape_.heads},
          .tokens = {{shape_.context, 1}}});
  }

  /// Exchanges with ranks at twice the distance each time, so that all have all; ranks beyond a
  /// power of two give theirs to another before and get the result behind.
  void tree() {
    begin();
    for (int rank = 0; rank < shape_.ranks; ++rank) attend(rank, rank);
    const int paired = static_cast<int>(std::bit_floor(static_cast<unsigned>(shape_.ranks)));
    if (paired < shape_.ranks) begin();
    for (int rank = paired; rank < shape_.ranks; ++rank) send_output(rank, rank - paired, true);
    for (int distance = 1; distance < paired; distance *= 2) {
      begin();
      for (int rank = 0; rank < paired; ++rank) send_output(rank, rank ^ distance, true);
    }
    if (paired < shape_.ranks) begin();
    for (int rank = paired; rank < shape_.ranks; ++rank) send_output(rank - paired, rank, false);
  }

  void ring() {
    for (int step = 0; step < shape_.ranks; ++step) {
      begin();
      for (int rank = 0; rank < shape_.ranks; ++rank) {
        const int owner = wrapped(rank - step);
        attend(rank, owner);
        if (step + 1 < shape_.ranks) send_keys(rank, wrapped(rank + 1), owner);
      }
    }
  }

  void gather() {
    begin();
    for (int rank = 0; rank < shape_.ranks; ++rank) attend(rank, rank);
    for (int distance = 1; distance < shape_.ranks; ++distance) {
      for (int rank = 0; rank < shape_.ranks; ++rank) {
        send_keys(rank, wrapped(rank + distance), rank);
      }
    }
    if (shape_.ranks == 1) return;
    begin();
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      for (int distance = 1; distance < shape_.ranks; ++distance) {
        attend(rank, wrapped(rank - distance));
      }
    }
  }

  const DecodeShape& shape_;
  ContextPlan plan_;
};

}  // namespace

std::span<const std::string_view> decode_method_names() { return kDecodeMethods; }

std::string_view name_of(DecodeMethod method) {
  return kDecodeMethods[static_cast<std::size_t>(method)];
}

std::vector<std::string> problems_of(const DecodeShape& shape) {
  std::vector<std::string> problems;
  const auto require = [&](const char* name, std::int64_t value) {
    if (value < 1) problems.push_back(fmt::format("{} = {}; use 1 or more", name, value));
  };
  require("ranks", shape.ranks);
  require("tokens of context", shape.context);
  require("query heads", shape.heads);
  require("key heads", shape.key_heads);
  require("elements of a head", shape.head_dim);
  if (shape.ranks > kMostDecodeRanks) {
    problems.push_back(fmt::format("{} ranks; use {} or fewer", shape.ranks, kMostDecodeRanks));
  }
  if (shape.heads > 0 && shape.key_heads > 0 && shape.heads % shape.key_heads != 0) {
    problems.push_back(fmt::format("{} query heads are no multiple of {} key heads", shape.heads,
                                   shape.key_heads));
  }
  return problems;
}

TokenRun decode_keys(const DecodeShape& shape, int rank) {
  const std::int64_t each = shape.context / shape.ranks, more = shape.context % shape.ranks;
  return {rank * each + std::min<std::int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

ContextPlan make_decode_plan(DecodeMethod method, const DecodeShape& shape) {
  return DecodeBuilder(shape).build(method);
}

}  // namespace heddle
