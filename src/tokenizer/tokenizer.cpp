#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/files/tokenizer_files.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/word_cache.h"

namespace heddle {
namespace {

/// A text shorter than this is encoded faster without filling a cache of its own.
constexpr std::size_t kWorthCaching = 32 * 1024;

bool is_plain_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

struct Tokenizer::Tables {
  TokenizerParts parts;
  std::vector<std::string> tokens;  // what decoders get, by id; an id without a token is empty
  std::vector<std::string> bytes;   // token_bytes
  std::vector<bool> is_special, is_skipped;
  TextIds added_ids;
  AddedTokenMatcher raw_matcher, normalized_matcher;
  std::string json;
  TokenRoles roles;
  bool cuts_at_spaces = false;  // last_cut

  std::string normalized(const std::string& text) const {
    NormalText normal{.text = text};
    for (const auto& normalizer : parts.normalizers) normalizer->apply(normal);
    return normal.text;
  }

  void add_tokens(const std::string& where) {
    for (std::size_t id = 0; id < parts.vocabulary->size(); ++id) {
      tokens.push_back(parts.vocabulary->token(id).value_or(""));
    }
    std::unordered_set<std::string> specials;
    for (const AddedToken& token : parts.added) {
      const auto id = static_cast<std::size_t>(token.id);
      if (id >= tokens.size()) tokens.resize(id + 1);
      tokens[id] = token.content;
      added_ids.emplace(token.content, token.id);
      if (token.special) specials.insert(token.content);
    }
    for (const std::string& token : tokens) {
      bytes.push_back(parts.is_byte_level ? spelled_bytes(token).value_or(token) : token);
    }
    // Of a token that is matched in normalised text, decoders get the normalised form.
    for (const AddedToken& token : parts.added) {
      std::string& spelling = tokens[static_cast<std::size_t>(token.id)];
      if (token.normalized) spelling = normalized(token.content);
      if (spelling.empty()) {
        fail(ErrorCode::data, "{}: the normalizer leaves nothing of the added token {:?}", where,
             token.content);
      }
      (token.normalized ? normalized_matcher : raw_matcher).add(token, spelling);
    }
    is_special.resize(tokens.size());
    is_skipped.resize(tokens.size());
    for (const AddedToken& token : parts.added) {
      if (token.special) is_special[static_cast<std::size_t>(token.id)] = true;
    }
    for (std::size_t id = 0; id < tokens.size(); ++id)
      is_skipped[id] = specials.contains(tokens[id]);
  }

  void encode_text(Piece piece, WordCache* cache, std::vector<std::int32_t>& out) const {
    const PreTokenizerChain& chain = parts.pretokenizer;
    if (cache == nullptr || !chain.has_pieces()) {
      return chain.for_each_word(piece, [&](Piece word) { encode_word(word.text, cache, out); });
    }
    chain.for_each_piece(piece, [&](Piece part) {
      const bool is_short = WordCache::takes(part.text);
      if (is_short && cache->append(part.text, WordCache::Of::piece, out)) return;
      const std::size_t begin = out.size();
      chain.for_each_word_of(
          part, [&](Piece word) { encode_word(word.text, is_short ? nullptr : cache, out); });
      if (is_short) cache->put(part.text, WordCache::Of::piece, std::span(out).subspan(begin));
    });
  }

  void encode_word(std::string_view word, WordCache* cache, std::vector<std::int32_t>& out) const {
    if (cache == nullptr) return parts.model->encode(word, out);
    if (cache->append(word, WordCache::Of::word, out)) return;
    const std::size_t begin = out.size();
    parts.model->encode(word, out);
    cache->put(word, WordCache::Of::word, std::span(out).subspan(begin));
  }

  /// Text between the added tokens that are matched before normalisation.
  void encode_piece(Piece piece, bool continues, bool parse_special, WordCache* cache,
                    std::vector<std::int32_t>& out) const {
    NormalText normal;
    if (!parts.normalizers.empty()) {
      normal = {
          .text = std::string(piece.text), .at_start = piece.at_start, .continues = continues};
      for (const auto& normalizer : parts.normalizers) normalizer->apply(normal);
      piece = {normal.text, normal.at_start};
    }
    if (normalized_matcher.empty()) return encode_text(piece, cache, out);
    normalized_matcher.split(
        piece.text, parse_special,
        [&](std::string_view part) { encode_text(piece.part(part), cache, out); },
        [&](std::int32_t id) { out.push_back(id); });
  }

  void encode_all(std::string_view text, const EncodeOptions& options, WordCache* cache,
                  std::vector<std::int32_t>& out) const {
    const Piece whole{text, !options.continues};
    const auto put = [&](const std::vector<std::int32_t>& ids) {
      if (options.add_special) out.insert(out.end(), ids.begin(), ids.end());
    };
    put(parts.around.before);
    raw_matcher.split(
        text, options.parse_special,
        [&](std::string_view part) {
          encode_piece(whole.part(part), options.continues && part.data() == text.data(),
                       options.parse_special, cache, out);
        },
        [&](std::int32_t id) { out.push_back(id); });
    put(parts.around.after);
  }

  std::vector<std::string> words_of(std::string_view text, bool continues) const {
    NormalText normal{.text = std::string(text), .at_start = !continues, .continues = continues};
    for (const auto& normalizer : parts.normalizers) normalizer->apply(normal);
    std::vector<std::string> words;
    parts.pretokenizer.for_each_word({normal.text, normal.at_start},
                                     [&](Piece word) { words.emplace_back(word.text); });
    return words;
  }

  /// Whether text may be cut before single spaces between letters of ASCII: every step must make
  /// the same of both sides whether or not it sees the other, no word may reach over the space, and
  /// no added token may touch it.
  bool finds_cuts_at_spaces() const {
    const auto is_local = [](const auto& step) { return step->is_local_at_spaces(); };
    if (!std::ranges::all_of(parts.normalizers, is_local)) return false;
    if (!parts.pretokenizer.is_local_at_spaces()) return false;
    if (std::ranges::any_of(parts.added, touches_spaces)) return false;
    std::vector<std::string> words = words_of("Ab", false);
    const std::vector<std::string> later = words_of(" cD", true);
    words.insert(words.end(), later.begin(), later.end());
    return words == words_of("Ab cD", false);
  }

  static bool touches_spaces(const AddedToken& token) {
    const std::string& text = token.content;
    if (text.empty() || text == " ") return true;
    if (is_plain_letter(text.front()) || is_plain_letter(text.back())) return true;
    for (std::size_t i = 1; i < text.size(); ++i) {
      if ((text[i] == ' ' && is_plain_letter(text[i - 1])) ||
          (text[i - 1] == ' ' && is_plain_letter(text[i]))) {
        return true;
      }
    }
    return false;
  }

  bool has_token(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < tokens.size();
  }
  /// What decoders get of an id; nothing where they get nothing.
  const std::string* decoded_token(std::int32_t id, bool skip_special) const {
    if (!has_token(id)) return nullptr;
    const auto at = static_cast<std::size_t>(id);
    return tokens[at].empty() || (skip_special && is_skipped[at]) ? nullptr : &tokens[at];
  }
};

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  TokenizerText text = read_tokenizer(path);
  return from_json(std::move(text.json), text.path.string(), std::move(text.roles));
}

Tokenizer Tokenizer::from_json(std::string text, const std::string& where, TokenRoles roles) {
  auto tables = std::make_shared<Tables>();
  tables->roles = std::move(roles);
  tables->parts = parse_tokenizer_json(text, where);
  tables->json = std::move(text);
  tables->add_tokens(where);
  tables->cuts_at_spaces = tables->finds_cuts_at_spaces();
  return Tokenizer(std::move(tables));
}

std::int32_t Tokenizer::vocab_size() const {
  return static_cast<std::int32_t>(tables_->tokens.size());
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

std::size_t Tokenizer::last_cut(std::string_view text) const {
  if (!tables_->cuts_at_spaces || text.size() < 3) return 0;
  for (std::size_t i = text.size() - 2; i > 0; --i) {
    if (text[i] == ' ' && is_plain_letter(text[i - 1]) && is_plain_letter(text[i + 1])) return i;
  }
  return 0;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string text;
  Decoding decoding(tables_->parts.decoders);
  for (const auto id : ids) {
    if (const auto* token = tables_->decoded_token(id, skip_special)) decoding.push(*token, text);
  }
  decoding.finish(text);
  return text;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  if (!tables_->has_token(id)) return {};
  return tables_->bytes[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_special(std::int32_t id) const {
  return tables_->has_token(id) && tables_->is_special[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  if (const auto at = tables_->added_ids.find(token); at != tables_->added_ids.end()) {
    return at->second;
  }
  return tables_->parts.vocabulary->find(tables_->parts.is_byte_level ? spell_bytes(token)
                                                                      : std::string(token));
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return tables_->parts.added; }

std::optional<std::int32_t> Tokenizer::token_of(std::string_view role) const {
  const auto named = tables_->roles.find(role);
  return named == tables_->roles.end() ? std::nullopt : id_of(named->second);
}

const std::string& Tokenizer::json() const { return tables_->json; }

EncodeCache::EncodeCache() : words_(std::make_unique<WordCache>()) {}
EncodeCache::~EncodeCache() = default;
EncodeCache::EncodeCache(EncodeCache&&) noexcept = default;
EncodeCache& EncodeCache::operator=(EncodeCache&&) noexcept = default;

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(skip_special),
      decoding_(std::make_unique<Decoding>(tokenizer_.tables_->parts.decoders)) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(std::int32_t id) {
  std::string text;
  if (const auto* token = tokenizer_.tables_->decoded_token(id, skip_special_)) {
    decoding_->push(*token, text);
  }
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  decoding_->finish(text);
  return text;
}

}  // namespace heddle
