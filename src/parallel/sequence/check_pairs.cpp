#include <fmt/format.h>

#include "base/rng.h"
#include "parallel/sequence/checks.h"

namespace heddle {
namespace {

/// Every key has a random number of 64 bits. Tiles add those of the keys that a query meets to the
/// query's sum, which must be that of the keys it may see: a wrong set of keys, or one twice, gives
/// another sum, but for one in 2^64. So plans of long sequences are checked in a time that grows
/// with their tiles' sides, not with their pairs.
class PairCheck {
 public:
  PairCheck(const ContextPlan& plan, const ContextPass& pass, std::string_view name,
            std::vector<Diagnostic>& found)
      : shape_(plan.shape),
        pass_(pass),
        name_(name),
        found_(found),
        sums_(static_cast<std::size_t>(shape_.tokens * shape_.heads)) {}

  void run() {
    for_each_tile([&](int, int, const Tile& tile) { add(tile); });
    std::int64_t document = 0, begin = 0;
    std::uint64_t expected = 0;
    for (std::int64_t query = 0; query < shape_.tokens; ++query) {
      if (query == begin + shape_.documents[static_cast<std::size_t>(document)]) {
        begin = query;
        ++document;
        expected = 0;
      }
      expected += number_of(query);
      if (shape_.window && query - *shape_.window >= begin) {
        expected -= number_of(query - *shape_.window);
      }
      for (int head = 0; head < shape_.heads; ++head) {
        if (sum_of(query, head) == expected) continue;
        explain(query, head, begin);
        return;  // what else is wrong has the same reason most of the time
      }
    }
  }

 private:
  static std::uint64_t number_of(std::int64_t key) {
    return random_u64(0, static_cast<std::uint64_t>(key));
  }

  std::uint64_t& sum_of(std::int64_t query, int head) {
    return sums_[static_cast<std::size_t>(query * shape_.heads + head)];
  }

  template <class Visit>
  void for_each_tile(const Visit& visit) const {
    for (int rank = 0; rank < pass_.ranks(); ++rank) {
      const auto& rounds = pass_.by_rank[static_cast<std::size_t>(rank)];
      for (std::size_t round = 0; round < rounds.size(); ++round) {
        for (const Tile& tile : rounds[round].tiles) visit(rank, static_cast<int>(round), tile);
      }
    }
  }

  void add(const Tile& tile) {
    std::vector<std::uint64_t> sums{0};  // of the first keys
    for (std::int64_t i = 0; i < tile.keys.count; ++i) {
      sums.push_back(sums.back() + number_of(tile.keys.at(i)));
    }
    for (std::int64_t i = 0; i < tile.queries.count; ++i) {
      const std::int64_t query = tile.queries.at(i);
      const auto [met, until] = met_keys(tile, query);
      const std::uint64_t sum =
          sums[static_cast<std::size_t>(until)] - sums[static_cast<std::size_t>(met)];
      for (int head = 0; head < tile.heads.count; ++head) {
        sum_of(query, tile.heads.first + head) += sum;
      }
    }
  }

  /// Names the first key that is wrong for this query and head, which is of the document that
  /// begins at `begin`, and who computes it.
  void explain(std::int64_t query, int head, std::int64_t begin) {
    struct Computed {
      int times = 0, rank = -1, round = -1;
    };
    std::vector<Computed> keys(static_cast<std::size_t>(shape_.tokens));
    for_each_tile([&](int rank, int round, const Tile& tile) {
      if (within(tile.queries, query, query + 1).count == 0) return;
      if (head < tile.heads.first || head >= tile.heads.first + tile.heads.count) return;
      const auto [met, until] = met_keys(tile, query);
      for (std::int64_t i = met; i < until; ++i) {
        Computed& key = keys[static_cast<std::size_t>(tile.keys.at(i))];
        key = {key.times + 1, rank, round};
      }
    });
    for (std::int64_t key = 0; key < shape_.tokens; ++key) {
      const auto& [times, rank, round] = keys[static_cast<std::size_t>(key)];
      const bool is_near = key > query - shape_.window.value_or(shape_.tokens);
      const bool may_see = key >= begin && key <= query && is_near;
      if (times == (may_see ? 1 : 0)) continue;
      const std::string pair = fmt::format("query {} with key {} in head {}", query, key, head);
      const std::string what =
          times == 0 ? "is never computed"
          : may_see  ? fmt::format("is computed {} times, at last in round {}", times, round)
                     : fmt::format("is computed in round {}, but it is {}", round,
                                  key > query   ? "a later token"
                                   : key < begin ? "of another document"
                                                 : "before the query's window");
      found_.push_back({rank, fmt::format("{}: {} {}", name_, pair, what)});
      return;
    }
  }

  const ContextShape& shape_;
  const ContextPass& pass_;
  std::string_view name_;
  std::vector<Diagnostic>& found_;
  std::vector<std::uint64_t> sums_;  // by query and head
};

}  // namespace

void check_pairs(const ContextPlan& plan, const ContextPass& pass, std::string_view name,
                 std::vector<Diagnostic>& found) {
  PairCheck(plan, pass, name, found).run();
}

}  // namespace heddle
