#include "data/encode.h"

#include <array>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/strings.h"

namespace heddle {

std::function<EncodeText()> encoders(const Tokenizer& tokenizer, bool parse_special) {
  return [tokenizer, parse_special]() -> EncodeText {
    const auto cache = std::make_shared<EncodeCache>();  // std::function must be copyable
    return [tokenizer, parse_special, cache](std::string_view text, bool continues,
                                             std::vector<std::int32_t>& out) {
      const EncodeOptions options{
          .add_special = false, .parse_special = parse_special, .continues = continues};
      tokenizer.encode(text, options, *cache, out);
    };
  };
}

std::function<std::size_t(std::string_view)> cuts_of(const Tokenizer& tokenizer) {
  return [tokenizer](std::string_view text) { return tokenizer.last_cut(text); };
}

TokenFileOrigin origin_of(const Tokenizer& tokenizer) {
  return {.vocab_size = tokenizer.vocab_size(),
          .tokenizer_fingerprint = content_hash(std::as_bytes(std::span(tokenizer.json())))};
}

std::optional<std::int32_t> find_end_token(const Tokenizer& tokenizer, std::string_view name) {
  // GPT-2 and GPT-NeoX; Llama 3; SentencePiece families; DeepSeek, with bars of full width.
  static constexpr std::array<std::string_view, 5> kNames = {
      "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>"};
  if (name == "none") return std::nullopt;
  if (name == "auto") {
    if (const auto named = tokenizer.token_of("eos_token")) return named;
    for (const std::string_view candidate : kNames) {
      const auto id = tokenizer.id_of(candidate);
      if (id && tokenizer.is_special(*id)) return id;
    }
    return std::nullopt;
  }
  const auto id = tokenizer.id_of(name);
  if (!id) {
    throw Error(ErrorCode::usage, fmt::format("the tokenizer has no token \"{}\"", shortened(name)),
                "name one of its tokens, or use auto or none");
  }
  return id;
}

}  // namespace heddle
