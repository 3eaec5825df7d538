#include "parallel/sequence/context_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace heddle {
namespace {

/// In the order of ContextMethod and of ContextOrder.
constexpr std::array<std::string_view, 7> kContextMethods = {
    "auto", "ring", "gather", "ulysses", "usp", "lightseq", "tokenring"};
constexpr std::array<std::string_view, 4> kContextOrders = {"auto", "contiguous", "zigzag",
                                                            "striped"};

/// Whether heads can be dealt out to so many ranks: the same number of query heads each, and of key
/// heads either the same number or one that several ranks share.
bool divides_heads(const ContextShape& shape, int ranks) {
  return shape.heads % ranks == 0 && (shape.key_heads % ranks == 0 || ranks % shape.key_heads == 0);
}

/// "1, 2 or 4": for which `most` and fewer ranks `is_legal` holds.
template <class IsLegal>
std::string legal_numbers(int most, const IsLegal& is_legal) {
  std::vector<int> legal;
  constexpr int kMostShown = 1024;  // larger ones help nobody
  for (int number = 1; number <= std::min(most, kMostShown); ++number) {
    if (is_legal(number)) legal.push_back(number);
  }
  const int last = legal.back();
  legal.pop_back();
  return legal.empty() ? fmt::format("{}", last)
                       : fmt::format("{} or {}", fmt::join(legal, ", "), last);
}

std::string legal_context_heads(const ContextShape& shape) {
  return legal_numbers(shape.ranks, [&](int number) {
    return shape.ranks % number == 0 && divides_heads(shape, number);
  });
}

/// The settings of a shape, as refusals write them. What is found is called by its whole name, what
/// to use instead by the short one.
class ContextWords {
 public:
  explicit ContextWords(const ContextTerms& terms) : terms_(terms) {}

  std::string cp(int ranks) const { return found("cp", "cp", ranks); }
  std::string method(ContextMethod method) const {
    return found("method", "context", quoted(method));
  }
  std::string order(ContextOrder order) const {
    return found("order", "context_order", quoted(order));
  }
  std::string context_heads(int ranks) const {
    return found("context-heads", "context_heads", ranks);
  }

  std::string use_cp(const std::string& numbers) const { return use("cp", "cp", numbers); }
  std::string use_method(ContextMethod method) const {
    return use("method", "context", quoted(method));
  }
  std::string use_order(ContextOrder order) const {
    return use("order", "context_order", quoted(order));
  }
  std::string use_context_heads(const std::string& numbers) const {
    return use("context-heads", "context_heads", numbers);
  }
  std::string all_heads(const ContextShape& shape) const {
    return fmt::format("{} query and {} key heads{}", shape.heads, shape.key_heads,
                       terms_.tp > 1 ? fmt::format(" (of each of tp = {} ranks)", terms_.tp) : "");
  }
  /// What a run file has from the model and the data.
  std::string size(std::string_view option, std::string_view of_model, std::int64_t value) const {
    return terms_.are_run_file ? fmt::format("the model's {} = {}", of_model, value)
                               : fmt::format("--{} {}", option, value);
  }

 private:
  template <class Name>
  std::string quoted(Name name) const {
    return terms_.are_run_file ? fmt::format("\"{}\"", name_of(name)) : std::string(name_of(name));
  }
  template <class Value>
  std::string found(std::string_view option, std::string_view key, const Value& value) const {
    return terms_.are_run_file ? fmt::format("parallel.{} = {}", key, value)
                               : fmt::format("--{} {}", option, value);
  }
  std::string use(std::string_view option, std::string_view key, const std::string& value) const {
    return terms_.are_run_file ? fmt::format("{} = {}", key, value)
                               : fmt::format("--{} {}", option, value);
  }

  const ContextTerms terms_;
};

class ContextProblems {
 public:
  ContextProblems(const ContextShape& shape, const ContextTerms& terms)
      : shape_(shape), words_(terms) {}

  std::vector<std::string> find() {
    check_positive();
    check_documents();
    check_order();
    if (!has_sizes_) return std::move(problems_);  // what follows divides by them
    check_groups();
    check_context_heads();
    return std::move(problems_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void check_positive() {
    const auto require = [&](const std::string& what, std::int64_t value) {
      if (value < 1) add("{} is not possible; use 1 or more", what);
      return value >= 1;
    };
    has_sizes_ = require(words_.cp(shape_.ranks), shape_.ranks);
    has_sizes_ = require(heads(), shape_.heads) && has_sizes_;
    has_sizes_ = require(key_heads(), shape_.key_heads) && has_sizes_;
    require(words_.size("seq", "tokens", shape_.tokens), shape_.tokens);
    require(words_.size("head-dim", "head size", shape_.head_dim), shape_.head_dim);
    if (shape_.window) require(words_.size("window", "window", *shape_.window), *shape_.window);
  }

  std::string heads() const { return words_.size("heads", "attention heads", shape_.heads); }
  std::string key_heads() const { return words_.size("kv-heads", "key heads", shape_.key_heads); }

  void check_documents() {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < shape_.documents.size(); ++i) {
      const std::int64_t length = shape_.documents[i];
      if (length < 1) {
        add("document {} has {} tokens; leave it out, or give 1 or more", i + 1, length);
        return;
      }
      if (length > shape_.tokens - sum) {
        add("documents have more tokens than the sequence, which has {} (document {} ends behind "
            "it); use a longer sequence, or cut the documents",
            shape_.tokens, i + 1);
        return;
      }
      sum += length;
    }
    if (!shape_.documents.empty() && sum < shape_.tokens) {
      add("documents have {} tokens together, but the sequence {}; use --seq {}, or add a document "
          "of {}",
          sum, shape_.tokens, sum, shape_.tokens - sum);
    }
  }

  void check_order() {
    if (shape_.method != ContextMethod::lightseq) return;
    if (shape_.order == ContextOrder::automatic || shape_.order == ContextOrder::contiguous) return;
    add("{} balances tokens in contiguous order by itself, and cannot have {}; use {}, or {}",
        words_.method(shape_.method), words_.order(shape_.order),
        words_.use_order(ContextOrder::contiguous), words_.use_method(ContextMethod::ring));
  }

  void check_groups() {
    if (shape_.heads % shape_.key_heads == 0) return;
    add("{} does not divide {}; use {}", key_heads(), heads(),
        legal_numbers(shape_.heads, [&](int number) { return shape_.heads % number == 0; }));
  }

  void check_context_heads() {
    const std::string all_heads = words_.all_heads(shape_);
    if (shape_.method == ContextMethod::ulysses && !divides_heads(shape_, shape_.ranks)) {
      add("{} cannot deal {} out to {} ranks; use {}, {} with {}, or {}",
          words_.method(shape_.method), all_heads, words_.cp(shape_.ranks),
          words_.use_cp(legal_numbers(shape_.heads,
                                      [&](int number) { return divides_heads(shape_, number); })),
          words_.use_method(ContextMethod::usp),
          words_.use_context_heads(legal_context_heads(shape_)),
          words_.use_method(ContextMethod::ring));
    }
    const int asked = shape_.context_heads;
    const bool is_whole = shape_.method == ContextMethod::ulysses;
    if (asked == 0) return;
    if (shape_.method != ContextMethod::usp) {
      if (asked == (is_whole ? shape_.ranks : 1)) return;  // what it is anyway
      add("{} is for {}, not for {}; leave it out", words_.context_heads(asked),
          words_.use_method(ContextMethod::usp), words_.method(shape_.method));
    } else if (asked < 1 || shape_.ranks % asked != 0 || !divides_heads(shape_, asked)) {
      add("{} does not divide {} and {}; use {}", words_.context_heads(asked),
          words_.cp(shape_.ranks), all_heads, legal_context_heads(shape_));
    }
  }

  const ContextShape& shape_;
  const ContextWords words_;
  std::vector<std::string> problems_;
  bool has_sizes_ = true;
};

/// Whether Ulysses is possible and sends less than a ring. What both send of a token in bf16,
/// forward and backward: q, k, v, out and their gradients to another rank once, or k, v and twice
/// as wide sums of dk, dv to all others in turn.
bool prefers_heads(const ContextShape& shape) {
  const bool says_otherwise =
      shape.order == ContextOrder::zigzag || shape.order == ContextOrder::striped;
  if (says_otherwise || !divides_heads(shape, shape.ranks)) return false;
  return 4 * (shape.heads + std::max(shape.key_heads, shape.ranks)) <
         8 * shape.key_heads * shape.ranks;
}

/// The most ranks that heads can be divided over without giving a key head to several.
int most_context_heads(const ContextShape& shape) {
  int most = 1;
  for (int number = 2; number <= shape.ranks; ++number) {
    if (shape.ranks % number == 0 && shape.key_heads % number == 0) most = number;
  }
  return most;
}

}  // namespace

std::span<const std::string_view> context_method_names() { return kContextMethods; }
std::span<const std::string_view> context_order_names() { return kContextOrders; }

std::string_view name_of(ContextMethod method) {
  return kContextMethods[static_cast<std::size_t>(method)];
}

std::string_view name_of(ContextOrder order) {
  return kContextOrders[static_cast<std::size_t>(order)];
}

std::vector<std::string> problems_of(const ContextShape& shape, const ContextTerms& terms) {
  return ContextProblems(shape, terms).find();
}

ContextShape resolved(ContextShape shape) {
  if (shape.method == ContextMethod::automatic) {
    shape.method = prefers_heads(shape) ? ContextMethod::ulysses : ContextMethod::ring;
  }
  const ContextMethod method = shape.method;
  if (shape.documents.empty()) shape.documents = {shape.tokens};
  if (shape.window && std::ranges::max(shape.documents) <= *shape.window) shape.window.reset();
  if (shape.order == ContextOrder::automatic) {
    const bool is_even = method == ContextMethod::ulysses || method == ContextMethod::lightseq;
    shape.order = is_even ? ContextOrder::contiguous : ContextOrder::zigzag;
  }
  if (method == ContextMethod::ulysses) {
    shape.context_heads = shape.ranks;
  } else if (method != ContextMethod::usp) {
    shape.context_heads = 1;
  } else if (shape.context_heads == 0) {
    shape.context_heads = most_context_heads(shape);
  }
  return shape;
}

}  // namespace heddle
