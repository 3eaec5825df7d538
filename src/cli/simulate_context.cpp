#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json_value.h"
#include "base/strings.h"
#include "cli/times_option.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "observe/timeline.h"
#include "simulator/play_context.h"

namespace heddle::cli {
namespace {

/// Pairs of blocks whose rounds take about a gibibyte, and tokens whose pairs can be counted.
constexpr double kMostBlockPairs = 5e5;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 27;
constexpr int kContextColumns = 160;
constexpr std::size_t kContextRanksShown = 16, kContextProblemsShown = 12;
constexpr int kAbsent = std::numeric_limits<int>::min();

struct SimulateContextOptions {
  std::string method, order = "auto", times = "1,0", dtype = "bf16";
  int ranks = kAbsent, heads = kAbsent, key_heads = kAbsent, head_dim = kAbsent;
  std::int64_t tokens = kAbsent;
  int context_heads = 0;
  std::int64_t window = kAbsent;
  std::filesystem::path documents, svg;
  bool json = false;
};

/// A plan and its two passes as played.
struct PlayedPlan {
  ContextPlan plan;
  ContextTimes times;
  PlayedContext forward, backward, both;
};

// ---- Reading options ----------------------------------------------------------------------------

/// Reads all options before it refuses any.
class OptionReader {
 public:
  explicit OptionReader(const SimulateContextOptions& options) : options_(options) {}

  std::pair<ContextShape, ContextTimes> read() {
    require_given();
    shape_.method = read_name<ContextMethod>("--method", options_.method, context_method_names());
    shape_.order = read_name<ContextOrder>("--order", options_.order, context_order_names());
    shape_.context_heads = options_.context_heads;
    if (options_.window != kAbsent) shape_.window = options_.window;
    if (!options_.documents.empty()) read_documents();
    const auto times = read_times();
    if (is_given_) {
      for (std::string& problem : problems_of(shape_)) problems_.push_back(std::move(problem));
      check_size();
    }
    refuse();
    return {
        resolved(shape_),
        {.pair = times[0], .byte = times[1], .sizes = {.value = options_.dtype == "f32" ? 4 : 2}}};
  }

 private:
  void require_given() {
    const auto give = [&](const char* option, std::int64_t value, auto& to) {
      if (value == kAbsent) {
        is_given_ = false;
        problems_.push_back(
            fmt::format("{} is missing; see heddle simulate context --help", option));
        return;
      }
      to = static_cast<std::remove_reference_t<decltype(to)>>(value);
    };
    give("--cp", options_.ranks, shape_.ranks);
    give("--seq", options_.tokens, shape_.tokens);
    give("--heads", options_.heads, shape_.heads);
    give("--kv-heads", options_.key_heads, shape_.key_heads);
    give("--head-dim", options_.head_dim, shape_.head_dim);
  }

  template <class Named>
  Named read_name(const char* option, const std::string& word,
                  std::span<const std::string_view> names) {
    const auto found = std::ranges::find(names, word);
    if (found != names.end()) return static_cast<Named>(found - names.begin());
    problems_.push_back(
        word.empty() ? fmt::format("{} is missing; use one of {}", option, fmt::join(names, ", "))
                     : fmt::format("{} {} does not exist; use one of {}", option, word,
                                   fmt::join(names, ", ")));
    return {};
  }

  std::vector<double> read_times() {
    try {
      return parse_times("--times", options_.times, "COMPUTE,LINK");
    } catch (const Error& error) {
      problems_.push_back(fmt::format("{}; {}", error.message(), error.hint()));
      return {0.0, 0.0};
    }
  }

  void read_documents() {
    const auto lines = split(read_text_file(options_.documents), '\n');
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string_view word = trim(lines[i]);
      if (word.empty()) continue;
      std::int64_t length = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), length);
      if (error == std::errc{} && end == word.data() + word.size() && length >= 1) {
        shape_.documents.push_back(length);
        continue;
      }
      problems_.push_back(
          fmt::format("{}:{}: \"{}\" is not a length; give a whole number of 1 or "
                      "more on each line",
                      options_.documents.string(), i + 1, shortened(word)));
    }
    if (shape_.documents.empty()) {
      problems_.push_back(fmt::format("{} has no documents; give one length on each line",
                                      options_.documents.string()));
    }
  }

  void check_size() {
    if (shape_.tokens > kMostTokens) {
      problems_.push_back(fmt::format("--seq {} is too long to simulate; use at most {}",
                                      shape_.tokens, kMostTokens));
    }
    // In striped order every rank has a part of every long document.
    const double ranks = shape_.ranks;
    const auto documents = static_cast<double>(shape_.documents.size());
    const double blocks =
        ranks * ranks * (shape_.order == ContextOrder::striped ? std::max(1.0, documents) : 1.0);
    if (blocks + documents > kMostBlockPairs) {
      problems_.push_back(
          fmt::format("--cp {} with {} documents is too much to simulate; use "
                      "fewer ranks or documents",
                      shape_.ranks, shape_.documents.size()));
    }
  }

  void refuse() {
    if (problems_.empty()) return;
    const std::size_t left_out =
        problems_.size() - std::min(problems_.size(), kContextProblemsShown);
    problems_.resize(problems_.size() - left_out);
    std::string message = fmt::format("{}", fmt::join(problems_, "\n  "));
    if (left_out > 0) message += fmt::format("\n  and {} more", left_out);
    throw Error(ErrorCode::usage, message);
  }

  const SimulateContextOptions& options_;
  ContextShape shape_;
  std::vector<std::string> problems_;
  bool is_given_ = true;
};

// ---- Results ------------------------------------------------------------------------------------

std::vector<std::int64_t> bytes_by_rank(const PlayedPlan& played, const ContextPass& pass) {
  std::vector<std::int64_t> bytes;
  for (const RankCounts& counts : count_by_rank(pass, played.plan.shape)) {
    bytes.push_back(bytes_of(counts.sent, played.times.sizes));
  }
  return bytes;
}

/// In all heads: a rank with a quarter of the heads computes a quarter of each pair.
std::vector<double> pairs_by_rank(const PlayedPlan& played, const ContextPass& pass) {
  std::vector<double> pairs;
  for (const RankCounts& counts : count_by_rank(pass, played.plan.shape)) {
    pairs.push_back(static_cast<double>(counts.head_pairs) / played.plan.shape.heads);
  }
  return pairs;
}

/// Whole numbers as such.
JsonValue pairs_json(const std::vector<double>& pairs) {
  JsonValue json = JsonValue::array();
  for (const double count : pairs) {
    const auto whole = static_cast<std::int64_t>(count);
    json.push_back(static_cast<double>(whole) == count ? JsonValue(whole) : JsonValue(count));
  }
  return json;
}

JsonValue pass_json(const PlayedPlan& played, const ContextPass& pass, const PlayedContext& times) {
  std::vector<std::int64_t> elements;
  for (const RankCounts& counts : count_by_rank(pass, played.plan.shape)) {
    elements.push_back(counts.sent.payload());
  }
  return {{"rounds", pass.rounds()},
          {"makespan", times.makespan},
          {"bytes_by_rank", bytes_by_rank(played, pass)},
          {"elements_by_rank", elements},
          {"pairs_by_rank", pairs_json(pairs_by_rank(played, pass))},
          {"idle_fraction", times.idle_fraction()},
          {"exposed_fraction", times.exposed_fraction()}};
}

void print_json(const PlayedPlan& played) {
  const auto& [plan, times, forward, backward, both] = played;
  auto bytes = bytes_by_rank(played, plan.forward);
  const auto bytes_back = bytes_by_rank(played, plan.backward);
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) bytes[rank] += bytes_back[rank];
  const JsonValue report = {
      {"method", name_of(plan.shape.method)},
      {"order", name_of(plan.shape.order)},
      {"cp", plan.shape.ranks},
      {"context_heads", plan.shape.context_heads},
      {"tokens", plan.shape.tokens},
      {"documents", static_cast<std::int64_t>(plan.shape.documents.size())},
      {"window", plan.shape.window ? JsonValue(*plan.shape.window) : JsonValue()},
      {"rounds", plan.forward.rounds() + plan.backward.rounds()},
      {"makespan", both.makespan},
      {"bytes_by_rank", bytes},
      {"pairs_by_rank", pairs_json(pairs_by_rank(played, plan.forward))},
      {"idle_fraction", both.idle_fraction()},
      {"exposed_fraction", both.exposed_fraction()},
      {"forward", pass_json(played, plan.forward, forward)},
      {"backward", pass_json(played, plan.backward, backward)}};
  fmt::print("{}\n", report.dump(2));
}

observe::Timeline timeline_of(const PlayedPlan& played) {
  const ContextShape& shape = played.plan.shape;
  observe::Timeline timeline{.description =
                                 fmt::format("attention of {} tokens by {} in {} order on {} ranks",
                                             shape.tokens, name_of(shape.method),
                                             name_of(shape.order), shape.ranks)};
  const auto forward_rounds = static_cast<std::size_t>(played.plan.forward.rounds());
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const auto& rounds = played.both.by_rank[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      const bool is_forward = i < forward_rounds;
      timeline.bars.push_back(
          {.rank = rank,
           .label =
               fmt::format("{}{}", is_forward ? "F" : "B", is_forward ? i : i - forward_rounds),
           .kind = is_forward ? observe::TimelineKind::forward : observe::TimelineKind::backward,
           .begin = rounds[i].begin,
           .end = rounds[i].computed});
      for (const PlayedMessage& message : rounds[i].sends) {
        timeline.bars.push_back({.rank = rank,
                                 .label = fmt::format("to {}", message.peer),
                                 .kind = observe::TimelineKind::communication,
                                 .begin = message.begin,
                                 .end = message.end,
                                 .line = 1,
                                 .bytes = message.bytes});
      }
    }
  }
  return timeline;
}

void print_ranks(const PlayedPlan& played) {
  const auto pairs = pairs_by_rank(played, played.plan.forward);
  const auto forward = bytes_by_rank(played, played.plan.forward);
  const auto backward = bytes_by_rank(played, played.plan.backward);
  fmt::print("\n{:>5} {:>12} {:>16} {:>14} {:>14}\n", "rank", "tokens", "pairs", "forward sends",
             "backward sends");
  for (std::size_t rank = 0; rank < std::min(kContextRanksShown, pairs.size()); ++rank) {
    fmt::print("{:>5} {:>12} {:>16} {:>14} {:>14}\n", rank,
               format_thousands(tokens_in(played.plan.held[rank])),
               format_thousands(std::llround(pairs[rank])),
               format_bytes(static_cast<double>(forward[rank])),
               format_bytes(static_cast<double>(backward[rank])));
  }
  if (pairs.size() > kContextRanksShown) {
    fmt::print("{:>5} {} more, in --json\n", "", pairs.size() - kContextRanksShown);
  }
}

void print_table(const PlayedPlan& played) {
  const auto& [plan, times, forward, backward, both] = played;
  const ContextShape& shape = plan.shape;
  const std::size_t documents = shape.documents.size();
  fmt::print(
      "{} in {} order: {} ranks, {} tokens in {} {}, {} query and {} key heads of {}{}{}\n\n",
      name_of(shape.method), name_of(shape.order), shape.ranks, format_thousands(shape.tokens),
      format_thousands(static_cast<std::int64_t>(documents)),
      documents == 1 ? "document" : "documents", shape.heads, shape.key_heads, shape.head_dim,
      shape.window ? fmt::format(", a window of {}", format_thousands(*shape.window)) : "",
      shape.method == ContextMethod::usp
          ? fmt::format(", heads divided over {}", shape.context_heads)
          : "");
  const auto row = [](const char* name, double a, double b, double c, const char* meaning = "") {
    fmt::print("{:<17} {:>12.6g} {:>12.6g} {:>12.6g}{}\n", name, a, b, c, meaning);
  };
  fmt::print("{:<17} {:>12} {:>12} {:>12}\n", "", "forward", "backward", "both");
  row("rounds", plan.forward.rounds(), plan.backward.rounds(),
      plan.forward.rounds() + plan.backward.rounds());
  row("makespan", forward.makespan, backward.makespan, both.makespan);
  row("idle_fraction", forward.idle_fraction(), backward.idle_fraction(), both.idle_fraction(),
      "  not computing, over makespan");
  row("exposed_fraction", forward.exposed_fraction(), backward.exposed_fraction(),
      both.exposed_fraction(), "  of that, waiting for messages on their way");
  print_ranks(played);
  const std::string drawing = observe::timeline_text(timeline_of(played), kContextColumns);
  if (!drawing.empty()) fmt::print("\n{}", drawing);
}

void run(const SimulateContextOptions& options) {
  const auto [shape, times] = OptionReader(options).read();
  PlayedPlan played{
      .plan = make_context_plan(shape), .times = times, .forward = {}, .backward = {}, .both = {}};
  played.forward = play_forward(played.plan, times);
  played.backward = play_backward(played.plan, times);
  played.both = in_sequence(played.forward, played.backward);
  if (!options.svg.empty()) {
    write_file_atomically(real_file_system(), options.svg,
                          observe::render_timeline(timeline_of(played)));
  }
  if (options.json) {
    print_json(played);
  } else {
    print_table(played);
  }
}

}  // namespace

void add_simulate_context(Verb simulate) {
  const auto options = std::make_shared<SimulateContextOptions>();
  Verb verb = simulate.add_verb(
      "context", "play attention of one sequence that is divided over ranks (axis cp)");
  verb.add_option("--method", options->method,
                  fmt::format("one of {}", fmt::join(context_method_names(), ", ")));
  verb.add_option("--order", options->order,
                  fmt::format("of tokens over ranks: {}", fmt::join(context_order_names(), ", ")))
      .show_default();
  verb.add_option("--cp", options->ranks, "ranks");
  verb.add_option("--seq", options->tokens, "tokens of the sequence; any number");
  verb.add_option("--heads", options->heads, "query heads");
  verb.add_option("--kv-heads", options->key_heads, "key heads");
  verb.add_option("--head-dim", options->head_dim, "elements of a head");
  verb.add_option("--context-heads", options->context_heads,
                  "usp: over how many ranks heads are divided; 0: as many as key heads allow")
      .show_default();
  verb.add_option("--window", options->window,
                  "tokens that a token attends to, itself included; all before it when absent");
  verb.add_option("--documents", options->documents,
                  "file with the length of a document on each line; one document when absent");
  verb.add_option("--times", options->times,
                  "COMPUTE,LINK: of one query with one key in all heads, forward (backward takes "
                  "2.5 times that), and of one byte on a rank's link")
      .show_default();
  verb.add_option("--dtype", options->dtype,
                  "of q, k, v and complete results; partial ones travel in f32")
      .one_of({"f32", "bf16"})
      .show_default();
  verb.add_option("--svg", options->svg, "draw the timeline into this file");
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
