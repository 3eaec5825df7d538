#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "tokenizer/normalizers/by_character.h"
#include "tokenizer/normalizers/kinds.h"
#include "tokenizer/unicode/graphemes.h"

namespace heddle {
namespace {

std::string from_base64(const std::string& text, const std::string& where) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : std::string_view(text).substr(0, text.find_last_not_of('=') + 1)) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) fail(ErrorCode::data, "{} is not base64", where);
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out.push_back(static_cast<char>(bits >> count & 255));
    }
  }
  return out;
}

/// SentencePiece's compiled rules: a double-array trie (of the library darts-clone) from byte
/// strings to places in a list of texts that end in a zero.
class Precompiled final : public Normalizer {
 public:
  Precompiled(std::string_view rules, const std::string& where) {
    std::uint32_t bytes = 0;
    if (rules.size() >= 4) std::memcpy(&bytes, rules.data(), 4);
    if (bytes == 0 || bytes % 4 != 0 || bytes > rules.size() - 4) {
      fail(ErrorCode::data, "{}: no compiled rules of SentencePiece", where);
    }
    units_.resize(bytes / 4);
    std::memcpy(units_.data(), rules.data() + 4, bytes);
    texts_ = rules.substr(4 + bytes);
    for (std::size_t c = 0; c < stays_.size(); ++c) {
      const char character = static_cast<char>(c);
      stays_[c] = character != '\r' && !find({&character, 1});
    }
  }

  /// A grapheme of up to five bytes is replaced by what its shortest beginning in the rules stands
  /// for; of others, each character. That a beginning decides over the whole is what the reference
  /// library does.
  void apply(NormalText& text) const override {
    NormalText out{.text = {}, .at_start = text.at_start, .continues = text.continues};
    out.text.reserve(text.text.size());
    for (std::string_view rest = text.text; !rest.empty();) {
      if (const std::size_t same = unchanged(rest); same > 0) {
        out.text += rest.substr(0, same);
        rest.remove_prefix(same);
        continue;
      }
      const std::string_view grapheme = rest.substr(0, grapheme_length(rest));
      put(grapheme, out);
      rest.remove_prefix(grapheme.size());
    }
    text = std::move(out);
  }
  bool is_local_at_spaces() const override { return true; }

 private:
  /// How many characters stay as they are: ASCII that is followed by ASCII, so by no mark.
  std::size_t unchanged(std::string_view text) const {
    const auto is_ascii = [&](std::size_t i) { return static_cast<signed char>(text[i]) >= 0; };
    std::size_t n = 0;
    while (n < text.size() && is_ascii(n) && stays_[static_cast<std::size_t>(text[n])] &&
           (n + 1 == text.size() || is_ascii(n + 1))) {
      ++n;
    }
    return n;
  }

  void put(std::string_view grapheme, NormalText& out) const {
    if (grapheme.size() < 6) {
      if (const auto whole = find(grapheme)) return put_text(*whole, out);
    }
    for_each_character(grapheme, [&](char32_t, std::string_view bytes) {
      put_text(find(bytes).value_or(bytes), out);
    });
  }
  static void put_text(std::string_view text, NormalText& out) {
    out.text += text;
    if (out.text.empty()) out.at_start = false;
  }

  std::optional<std::string_view> find(std::string_view key) const {
    std::size_t node = offset(units_[0]);
    for (const char c : key) {
      const auto byte = static_cast<unsigned char>(c);
      node ^= byte;
      if (byte == 0 || node >= units_.size() || label(units_[node]) != byte) return std::nullopt;
      const bool has_leaf = (units_[node] >> 8 & 1) != 0;
      node ^= offset(units_[node]);
      if (has_leaf) {
        if (node >= units_.size()) return std::nullopt;
        return text_at(units_[node] & 0x7FFFFFFF);
      }
    }
    return std::nullopt;
  }
  std::optional<std::string_view> text_at(std::size_t at) const {
    if (at >= texts_.size()) return std::nullopt;
    return std::string_view(texts_).substr(at, texts_.find('\0', at) - at);
  }
  static std::size_t offset(std::uint32_t unit) {
    return std::size_t{unit >> 10} << ((unit & (1U << 9)) >> 6);
  }
  static std::uint32_t label(std::uint32_t unit) { return unit & (1U << 31 | 255); }

  std::vector<std::uint32_t> units_;
  std::string texts_;
  std::array<bool, 128> stays_{};  // ASCII that no rule changes where it is a grapheme of its own
};

}  // namespace

NormalizerPtr make_precompiled(const Section& step) {
  const std::string where = step.path_of("precompiled_charsmap");
  const std::string& rules = step.string("precompiled_charsmap");
  return std::make_unique<Precompiled>(from_base64(rules, where), where);
}

}  // namespace heddle
