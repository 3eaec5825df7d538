#include "tokenizer/word_counts.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <unordered_map>

#include "tokenizer/added_tokens.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

struct ViewHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
using Counts = std::unordered_map<std::string, std::int64_t, ViewHash, std::equal_to<>>;

bool is_ascii_letter(char c) {
  return static_cast<signed char>(c) >= 0 &&
         kAsciiClass[static_cast<unsigned char>(c)] == CharClass::letter;
}

/// The first place at or after `from` where every scanner starts a word whatever precedes: the
/// space in "letter, space, letter".
std::size_t safe_cut(std::string_view text, std::size_t from) {
  for (std::size_t at = std::max<std::size_t>(from, 1); at + 1 < text.size(); ++at) {
    if (text[at] == ' ' && is_ascii_letter(text[at - 1]) && is_ascii_letter(text[at + 1]))
      return at;
  }
  return text.size();
}

void cut(std::string_view text, std::vector<std::string_view>& chunks) {
  while (!text.empty()) {
    const std::size_t end = text.size() <= kChunk ? text.size() : safe_cut(text, kChunk);
    chunks.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

void count_chunk(std::string_view chunk, Scan scan, Counts& counts) {
  const char* p = chunk.data();
  const char* end = p + chunk.size();
  while (p < end) {
    const char* next = scan(p, end);
    const std::string_view word(p, static_cast<std::size_t>(next - p));
    if (const auto at = counts.find(word); at != counts.end()) {
      ++at->second;
    } else {
      counts.emplace(word, 1);
    }
    p = next;
  }
}

}  // namespace

std::vector<std::pair<std::string, std::int64_t>> count_words(
    std::span<const std::string_view> texts, const WordCountOptions& options) {
  AddedTokenMatcher specials;
  for (const auto& content : options.special_tokens) specials.add({.content = content}, content);
  std::vector<std::string_view> chunks;
  std::int64_t total = 0;
  for (const auto text : texts) {
    specials.split(
        text, true, [&](std::string_view piece) { cut(piece, chunks); }, [](std::int32_t) {});
  }
  for (const auto chunk : chunks) total += static_cast<std::int64_t>(chunk.size());

  std::atomic<std::size_t> next{0};
  std::mutex progress_mutex;
  std::int64_t done = 0;
  const auto work = [&] {
    Counts counts;
    for (std::size_t i = next++; i < chunks.size(); i = next++) {
      count_chunk(chunks[i], options.scan, counts);
      const std::lock_guard lock(progress_mutex);
      done += static_cast<std::int64_t>(chunks[i].size());
      if (options.progress) options.progress(done, total);
    }
    return counts;
  };
  std::vector<std::future<Counts>> others;
  for (int t = 1; t < options.threads; ++t) others.push_back(std::async(std::launch::async, work));
  Counts counts = work();
  for (auto& other : others) {
    for (const auto& [word, count] : other.get()) counts[word] += count;
  }
  std::vector<std::pair<std::string, std::int64_t>> words(counts.begin(), counts.end());
  std::sort(words.begin(), words.end());
  return words;
}

}  // namespace heddle
