#include "tokenizer/bpe_train.h"

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/word_counts.h"

namespace heddle {
namespace {

constexpr std::int64_t kMaxVocab = std::int64_t{1} << 22;

using Pair = std::pair<std::int32_t, std::int32_t>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    const auto key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.first)) << 32 |
                     static_cast<std::uint32_t>(pair.second);
    return static_cast<std::size_t>((key ^ key >> 29) * 0x9E3779B97F4A7C15ULL >> 7);
  }
};

/// The state of training: words as sequences of tokens, how often each adjacent pair occurs, and
/// where.
class Learner {
 public:
  explicit Learner(const BpeTrainOptions& options) : options_(options) {
    for (const auto& content : options.special_tokens) add_token(content);
    // Alphabet order is code-point order of the characters that spell the bytes.
    std::array<unsigned char, 256> bytes;
    for (std::size_t b = 0; b < 256; ++b) bytes[b] = static_cast<unsigned char>(b);
    std::sort(bytes.begin(), bytes.end(), [](unsigned char a, unsigned char b) {
      return byte_character(a) < byte_character(b);
    });
    for (const auto b : bytes) {
      const char byte = static_cast<char>(b);
      byte_ids_[b] = add_token(spell_bytes({&byte, 1}));
    }
  }

  void add_words(const std::vector<std::pair<std::string, std::int64_t>>& words) {
    words_.reserve(words.size());
    for (const auto& [bytes, count] : words) {
      Word word{{}, count};
      for (const char b : bytes) word.tokens.push_back(byte_ids_[static_cast<unsigned char>(b)]);
      const auto index = static_cast<std::uint32_t>(words_.size());
      for (std::size_t i = 0; i + 1 < word.tokens.size(); ++i) {
        change_count({word.tokens[i], word.tokens[i + 1]}, count, index);
      }
      words_.push_back(std::move(word));
    }
    push_gained();
  }

  void learn() {
    const std::int64_t least = std::max<std::int64_t>(options_.min_frequency, 1);
    while (size() < options_.vocab_size && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const std::int64_t count = pairs_[best.pair].count;
      if (count != best.count) {  // an older count: a larger one has its own entry already
        if (count > 0 && count < best.count) queue_.push({count, best.pair});
        continue;
      }
      if (count < least) return;
      merge(best.pair);
      if (options_.progress) options_.progress({kLearningMerges, size(), options_.vocab_size});
    }
  }

  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::vector<Pair>& merges() const { return merges_; }

 private:
  struct Word {
    std::vector<std::int32_t> tokens;
    std::int64_t count;
  };
  struct PairState {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // where it occurs, or did
  };
  struct Candidate {
    std::int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {  // the queue's top is its greatest
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  std::int32_t add_token(const std::string& spelling) {
    const auto id = static_cast<std::int32_t>(tokens_.size());
    if (!ids_.emplace(spelling, id).second) {
      fail(ErrorCode::usage, "special token \"{}\" is the spelling of a byte",
           tokens_[static_cast<std::size_t>(ids_[spelling])]);
    }
    tokens_.push_back(spelling);
    return id;
  }

  void change_count(const Pair& pair, std::int64_t by, std::uint32_t word) {
    PairState& state = pairs_[pair];
    state.count += by;
    if (by < 0) return;
    if (state.words.empty() || state.words.back() != word) state.words.push_back(word);
    gained_.insert(pair);
  }

  void push_gained() {
    for (const auto& pair : gained_) {
      const auto count = pairs_[pair].count;
      if (count > 0) queue_.push({count, pair});
    }
    gained_.clear();
  }

  void merge(const Pair& pair) {
    const std::string spelling = tokens_[static_cast<std::size_t>(pair.first)] +
                                 tokens_[static_cast<std::size_t>(pair.second)];
    PairState done = std::exchange(pairs_[pair], {});
    std::int32_t id = 0;
    if (const auto known = ids_.find(spelling); known != ids_.end()) {
      // Another way to a token that exists; but text must never become a special token.
      if (known->second < static_cast<std::int32_t>(options_.special_tokens.size())) return;
      id = known->second;
    } else {
      id = add_token(spelling);
    }
    // A pair can come back after its merge, through a second way to one of its tokens.
    if (merged_.insert(pair).second) merges_.push_back(pair);
    for (const auto word : done.words) merge_in_word(word, pair, id);
    pairs_[pair] = {};
    gained_.erase(pair);
    push_gained();
  }

  void merge_in_word(std::uint32_t index, const Pair& pair, std::int32_t id) {
    Word& word = words_[index];
    auto& tokens = word.tokens;
    std::size_t kept = 0;  // tokens[0, kept) is done; what follows is still to be read
    for (std::size_t at = 0; at < tokens.size();) {
      if (at + 1 < tokens.size() && tokens[at] == pair.first && tokens[at + 1] == pair.second) {
        if (kept > 0) {
          change_count({tokens[kept - 1], pair.first}, -word.count, index);
          change_count({tokens[kept - 1], id}, word.count, index);
        }
        if (at + 2 < tokens.size()) {
          change_count({pair.second, tokens[at + 2]}, -word.count, index);
          change_count({id, tokens[at + 2]}, word.count, index);
        }
        tokens[kept++] = id;
        at += 2;
      } else {
        tokens[kept++] = tokens[at++];
      }
    }
    tokens.resize(kept);
  }

  const BpeTrainOptions& options_;
  std::vector<std::string> tokens_;  // spelled, by id
  std::unordered_map<std::string, std::int32_t> ids_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<Word> words_;
  std::unordered_map<Pair, PairState, PairHash> pairs_;
  std::unordered_set<Pair, PairHash> gained_, merged_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> merges_;
};

void check_options(const BpeTrainOptions& options) {
  std::unordered_set<std::string> seen;
  for (const auto& content : options.special_tokens) {
    if (content.empty()) fail(ErrorCode::usage, "a special token is empty");
    if (valid_utf8_prefix(content) != content.size()) {
      fail(ErrorCode::usage, "a special token is not valid UTF-8");
    }
    if (!seen.insert(content).second) {
      fail(ErrorCode::usage, "special token \"{}\" given twice", content);
    }
  }
  const auto least = 256 + static_cast<std::int64_t>(options.special_tokens.size());
  if (options.vocab_size < least || options.vocab_size > kMaxVocab) {
    throw Error(
        ErrorCode::usage,
        fmt::format("a vocabulary of {} tokens cannot be trained", options.vocab_size),
        fmt::format("ask for {} (the bytes and the special tokens) to {}", least, kMaxVocab));
  }
  if (options.threads < 1) fail(ErrorCode::usage, "{} threads", options.threads);
}

Json byte_level(bool use_regex, bool add_prefix_space) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json pre_tokenizer(PretokenizerStyle style) {
  if (style == PretokenizerStyle::gpt2) return byte_level(true, false);
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", kLlama3Pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false, false)})}};
}

/// Vocabulary and merges are written by hand: our JSON objects are slow to fill with many keys.
std::string to_json(const Learner& learner, const BpeTrainOptions& options) {
  Json added = Json::array();
  for (std::size_t id = 0; id < options.special_tokens.size(); ++id) {
    added.push_back({{"id", id},
                     {"content", options.special_tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  std::string vocab, merges;
  for (std::size_t id = 0; id < learner.tokens().size(); ++id) {
    vocab +=
        fmt::format("{}\n      {}: {}", id == 0 ? "" : ",", Json(learner.tokens()[id]).dump(), id);
  }
  for (const auto& [left, right] : learner.merges()) {
    merges += fmt::format("{}\n      {}", merges.empty() ? "" : ",",
                          Json(learner.tokens()[static_cast<std::size_t>(left)] + " " +
                               learner.tokens()[static_cast<std::size_t>(right)])
                              .dump());
  }
  return fmt::format(R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": {},
  "normalizer": null,
  "pre_tokenizer": {},
  "post_processor": null,
  "decoder": {},
  "model": {{
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {{{}
    }},
    "merges": [{}
    ]
  }}
}}
)",
                     added.dump(), pre_tokenizer(options.pretokenizer).dump(),
                     byte_level(true, true).dump(), vocab, merges);
}

}  // namespace

BpeTrainResult train_bpe(std::span<const std::string_view> texts, const BpeTrainOptions& options) {
  check_options(options);
  Learner learner(options);
  WordCountOptions counting{
      .scan = options.pretokenizer == PretokenizerStyle::gpt2 ? scan_gpt2 : scan_llama3,
      .special_tokens = options.special_tokens,
      .threads = options.threads,
      .progress = {}};
  if (options.progress) {
    counting.progress = [&](std::int64_t done, std::int64_t total) {
      options.progress({kCountingWords, done, total});
    };
  }
  const auto words = count_words(texts, counting);
  if (words.empty()) {
    throw Error(ErrorCode::data, "there is no text to train a tokenizer on",
                "give files that are not empty");
  }
  learner.add_words(words);
  learner.learn();
  return {to_json(learner, options), learner.size(), static_cast<std::int64_t>(words.size())};
}

}  // namespace heddle
