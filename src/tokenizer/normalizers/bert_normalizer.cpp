#include <algorithm>
#include <array>

#include "tokenizer/normalizers/by_character.h"
#include "tokenizer/normalizers/kinds.h"
#include "tokenizer/unicode/normal_forms.h"

namespace heddle {
namespace {

/// The ideographs that BERT takes for words.
bool is_ideograph(char32_t c) {
  return (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

class BertNormalizer final : public Normalizer {
 public:
  struct Rules {
    bool cleans, sets_ideographs_apart, strips_accents, lowers;
  };
  explicit BertNormalizer(Rules rules) : rules_(rules) {
    for (std::size_t c = 0; c < ascii_.size(); ++c) {
      const auto character = static_cast<char>(c);
      NormalText one{.text = {character}};
      rewrite(one);
      ascii_[c] = one.text.empty() ? kRemoved : one.text.front();
    }
  }

  void apply(NormalText& text) const override {
    const auto is_ascii = [](char c) { return static_cast<signed char>(c) >= 0; };
    if (!std::all_of(text.text.begin(), text.text.end(), is_ascii)) return rewrite(text);
    std::string out;
    out.reserve(text.text.size());
    for (const char c : text.text) {
      const int becomes = ascii_[static_cast<std::size_t>(c)];
      if (becomes != kRemoved) out.push_back(static_cast<char>(becomes));
      if (out.empty()) text.at_start = false;
    }
    text.text = std::move(out);
  }
  bool is_local_at_spaces() const override { return true; }

 private:
  static constexpr int kRemoved = -1;

  void rewrite(NormalText& text) const {
    if (rules_.cleans || rules_.sets_ideographs_apart) clean(text);
    if (rules_.strips_accents) text.text = to_normal_form(text.text, NormalForm::nfd);
    if (rules_.strips_accents || rules_.lowers) simplify(text);
  }

  void clean(NormalText& text) const {
    rewrite_characters(text, [&](char32_t c, std::string_view bytes, std::string& out) {
      if (rules_.cleans && has(c, CharFlag::bert_unclean)) return;
      if (rules_.sets_ideographs_apart && is_ideograph(c)) {
        out.append(" ").append(bytes).append(" ");
      } else {
        out += rules_.cleans && class_of(c) == CharClass::space ? " " : bytes;
      }
    });
  }
  void simplify(NormalText& text) const {
    rewrite_characters(text, [&](char32_t c, std::string_view bytes, std::string& out) {
      if (rules_.strips_accents && has(c, CharFlag::bert_accent)) return;
      if (rules_.lowers) {
        append_lowercase(c, out);
      } else {
        out += bytes;
      }
    });
  }

  Rules rules_;
  std::array<int, 128>
      ascii_{};  // what each ASCII character becomes: it has no neighbours that matter
};

}  // namespace

NormalizerPtr make_bert_normalizer(const Section& step) {
  const bool lowers = step.flag("lowercase", true);
  return std::make_unique<BertNormalizer>(
      BertNormalizer::Rules{.cleans = step.flag("clean_text", true),
                            .sets_ideographs_apart = step.flag("handle_chinese_chars", true),
                            .strips_accents = step.flag("strip_accents", lowers),
                            .lowers = lowers});
}

}  // namespace heddle
