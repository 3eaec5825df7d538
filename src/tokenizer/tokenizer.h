#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"

namespace heddle {

class Decoding;
class EncodeCache;
class WordCache;

struct EncodeOptions {
  bool add_special = false;   ///< put what the post-processor asks for around the text (BOS, say)
  bool parse_special = true;  ///< off: special tokens in the text are plain text (untrusted input)
  bool continues = false;     ///< the text goes on with another, which was cut at last_cut
};

/// Tokens by the roles that they have for a model: "bos_token", "eos_token", "pad_token" and so on.
using TokenRoles = std::map<std::string, std::string, std::less<>>;

/// A tokenizer read from a Hugging Face tokenizer.json: the ids are those of the reference
/// implementation for every valid UTF-8 text. Immutable; all members may be called from several
/// threads at once; copies share their tables. Its stages are in the folders beside this file
/// (docs/design/060-tokenizers-by-stages.md).
class Tokenizer {
 public:
  /// Reads what read_tokenizer (files/tokenizer_files.h) finds. Throws Error(data) that names the
  /// file and what is wrong with it or not supported.
  static Tokenizer load(const std::filesystem::path& path);
  static Tokenizer from_json(std::string text, const std::string& where, TokenRoles roles = {});

  /// One more than the highest id. Model embeddings may be larger (padding), never smaller.
  std::int32_t vocab_size() const;
  /// Bytes that are not valid UTF-8 are encoded too (each as a character of its own), so that
  /// token_bytes of the result of a byte-level tokenizer gives any input back exactly when nothing
  /// normalises. Throws Error(data) for a text that the vocabulary cannot spell.
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Appends to `out`. The cache makes repeated words cheap; one per thread, kept between calls.
  void encode(std::string_view text, const EncodeOptions& options, EncodeCache& cache,
              std::vector<std::int32_t>& out) const;

  /// The last place where `text`, the beginning of a longer one, may be cut, so that both parts,
  /// the later one with `continues`, give the ids of the whole. 0 where there is none in it, or
  /// none is known for this tokenizer.
  std::size_t last_cut(std::string_view text) const;

  /// Valid UTF-8: broken sequences become U+FFFD. Ids that have no token decode to nothing.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
  /// The bytes a token of a byte-level tokenizer stands for, else the token as the vocabulary
  /// spells it; empty when the id has no token.
  std::string_view token_bytes(std::int32_t id) const;
  bool is_special(std::int32_t id) const;

  /// The added token with this content, else the token whose token_bytes these are.
  std::optional<std::int32_t> id_of(std::string_view token) const;
  const std::vector<AddedToken>& added_tokens() const;
  /// The token with this role, as the files beside the tokenizer say; tokenizer.json itself does
  /// not.
  std::optional<std::int32_t> token_of(std::string_view role) const;

  /// The file's text, to be written beside a trained model unchanged.
  const std::string& json() const;

 private:
  friend class EncodeCache;
  friend class StreamDecoder;
  struct Tables;
  explicit Tokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}
  std::shared_ptr<const Tables> tables_;
};

/// Words already encoded, of fixed size (2 MiB). For use by one thread at a time; used with another
/// tokenizer it starts afresh.
class EncodeCache {
 public:
  EncodeCache();
  ~EncodeCache();
  EncodeCache(EncodeCache&&) noexcept;
  EncodeCache& operator=(EncodeCache&&) noexcept;

 private:
  friend class Tokenizer;
  std::shared_ptr<const Tokenizer::Tables> owner_;
  std::unique_ptr<WordCache> words_;
};

/// Decodes token by token, as text is generated. The pieces put together equal Tokenizer::decode of
/// all tokens; what later tokens may change (bytes of a character that is not complete, say) is
/// held back.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = false);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  /// The text that this token completes; may be empty.
  std::string push(std::int32_t id);
  /// What is left: U+FFFD when the last character is incomplete, say.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  std::unique_ptr<Decoding> decoding_;
};

}  // namespace heddle
