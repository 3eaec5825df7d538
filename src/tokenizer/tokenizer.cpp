#include "tokenizer/tokenizer.h"

#include <unordered_map>
#include <utility>

#include "base/file_system.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"
#include "tokenizer/word_cache.h"

namespace heddle {
namespace {

/// A text shorter than this is encoded faster without filling a cache of its own.
constexpr std::size_t kWorthCaching = 32 * 1024;

}  // namespace

struct Tokenizer::Tables {
  TokenizerParts parts;
  Bpe bpe;
  std::unordered_map<std::string_view, std::int32_t> word_ids;   // views into parts.tokens
  std::unordered_map<std::string_view, std::int32_t> added_ids;  // views into parts.added
  std::vector<bool> is_special;
  AddedTokenMatcher raw_matcher, normalized_matcher;
  std::string json;

  void encode_text(std::string_view text, WordCache* cache, std::vector<std::int32_t>& out) const {
    parts.pretokenizer.for_each_word(text, [&](std::string_view word) {
      if (cache != nullptr && cache->append(word, out)) return;
      const std::size_t begin = out.size();
      encode_word(word, out);
      if (cache != nullptr) cache->put(word, std::span(out).subspan(begin));
    });
  }

  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const {
    if (parts.ignore_merges) {
      if (const auto at = word_ids.find(word); at != word_ids.end()) {
        out.push_back(at->second);
        return;
      }
    }
    bpe.encode(word, out);
  }

  /// Text between the added tokens that are matched before normalisation.
  void encode_piece(std::string_view text, bool parse_special, WordCache* cache,
                    std::vector<std::int32_t>& out) const {
    std::string normalized;
    if (parts.normalizes_nfc) {
      normalized = to_nfc(text);
      text = normalized;
    }
    if (normalized_matcher.empty()) return encode_text(text, cache, out);
    normalized_matcher.split(
        text, parse_special, [&](std::string_view piece) { encode_text(piece, cache, out); },
        [&](std::int32_t id) { out.push_back(id); });
  }

  void encode_all(std::string_view text, const EncodeOptions& options, WordCache* cache,
                  std::vector<std::int32_t>& out) const {
    if (options.add_special) out.insert(out.end(), parts.prefix.begin(), parts.prefix.end());
    raw_matcher.split(
        text, options.parse_special,
        [&](std::string_view piece) { encode_piece(piece, options.parse_special, cache, out); },
        [&](std::int32_t id) { out.push_back(id); });
    if (options.add_special) out.insert(out.end(), parts.suffix.begin(), parts.suffix.end());
  }
};

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return from_json(read_text_file(path), path.string());
}

Tokenizer Tokenizer::from_json(std::string text, const std::string& where) {
  auto tables = std::make_shared<Tables>();
  tables->parts = parse_tokenizer_json(text, where);
  tables->json = std::move(text);
  TokenizerParts& parts = tables->parts;
  tables->bpe = Bpe(parts.byte_ids, std::exchange(parts.merges, {}));
  tables->word_ids.reserve(parts.tokens.size());
  for (std::size_t id = 0; id < parts.tokens.size(); ++id) {
    if (parts.is_word[id])
      tables->word_ids.emplace(parts.tokens[id], static_cast<std::int32_t>(id));
  }
  tables->is_special.resize(parts.tokens.size());
  for (const auto& token : parts.added) {
    tables->added_ids.emplace(token.content, token.id);
    if (token.special) tables->is_special[static_cast<std::size_t>(token.id)] = true;
    if (token.normalized) {
      const bool changes = parts.normalizes_nfc;
      tables->normalized_matcher.add(token, changes ? to_nfc(token.content) : token.content);
    } else {
      tables->raw_matcher.add(token, token.content);
    }
  }
  return Tokenizer(std::move(tables));
}

std::int32_t Tokenizer::vocab_size() const {
  return static_cast<std::int32_t>(tables_->parts.tokens.size());
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text,
                                            const EncodeOptions& options) const {
  std::vector<std::int32_t> out;
  if (text.size() >= kWorthCaching) {
    EncodeCache cache;
    encode(text, options, cache, out);
  } else {
    tables_->encode_all(text, options, nullptr, out);
  }
  return out;
}

void Tokenizer::encode(std::string_view text, const EncodeOptions& options, EncodeCache& cache,
                       std::vector<std::int32_t>& out) const {
  if (cache.owner_ != tables_) {
    if (cache.owner_ != nullptr) cache = EncodeCache();
    cache.owner_ = tables_;
  }
  tables_->encode_all(text, options, cache.words_.get(), out);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const auto id : ids) {
    if (!(skip_special && is_special(id))) bytes += token_bytes(id);
  }
  std::string text;
  Utf8Replacer replacer;
  replacer.append(bytes, text);
  replacer.finish(text);
  return text;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return tables_->parts.tokens[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && tables_->is_special[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  for (const auto* ids : {&tables_->added_ids, &tables_->word_ids}) {
    if (const auto at = ids->find(token); at != ids->end()) return at->second;
  }
  return std::nullopt;
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return tables_->parts.added; }

const std::string& Tokenizer::json() const { return tables_->json; }

EncodeCache::EncodeCache() : words_(std::make_unique<WordCache>()) {}
EncodeCache::~EncodeCache() = default;
EncodeCache::EncodeCache(EncodeCache&&) noexcept = default;
EncodeCache& EncodeCache::operator=(EncodeCache&&) noexcept = default;

std::string StreamDecoder::push(std::int32_t id) {
  std::string text;
  if (!(skip_special_ && tokenizer_.is_special(id))) {
    replacer_.append(tokenizer_.token_bytes(id), text);
  }
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  replacer_.finish(text);
  return text;
}

}  // namespace heddle
