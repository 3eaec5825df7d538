#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/models/bpe_merges.h"
#include "tokenizer/models/kinds.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

[[noreturn]] void fail_unspelled(std::string_view what) {
  throw Error(
      ErrorCode::data,
      fmt::format("the text has {}, for which the tokenizer's vocabulary has no token", what),
      "use a tokenizer that has tokens for all 256 bytes, or an unk_token");
}

/// Where words start with SentencePiece's character for a space, what precedes one.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

const char* scan_marked_words(const char* p, const char* end) {
  const auto at_mark = [&](const char* q) {
    return end - q >= 3 && std::string_view(q, 3) == kSpaceMark;
  };
  while (at_mark(p)) p += 3;
  while (p < end && !at_mark(p)) ++p;
  return p;
}

/// Byte-pair encoding of words whose bytes are no longer spelled as characters.
class ByteBpe final : public TokenModel {
 public:
  /// `byte_ids[b]` is the token of byte b or kNoToken; `whole_words` are taken as they are.
  ByteBpe(const std::array<std::int32_t, 256>& byte_ids, BpeMerges merges, TextIds whole_words)
      : byte_ids_(byte_ids),
        merges_(std::move(merges)),
        whole_words_(std::move(whole_words)),
        pair_ranks_(256 * 256, BpeMerges::kNoRank) {
    for (std::size_t a = 0; a < 256; ++a) {
      if (byte_ids_[a] == BpeMerges::kNoToken) continue;
      for (std::size_t b = 0; b < 256; ++b) {
        if (byte_ids_[b] == BpeMerges::kNoToken) continue;
        pair_ranks_[a * 256 + b] = merges_.rank_of(byte_ids_[a], byte_ids_[b]);
      }
    }
  }

  void encode(std::string_view word, std::vector<std::int32_t>& out) const override {
    if (!whole_words_.empty()) {
      if (const auto at = whole_words_.find(word); at != whole_words_.end()) {
        out.push_back(at->second);
        return;
      }
    }
    if (word.size() > BpeMerges::kShort) {
      std::vector<std::int32_t> symbols(word.size());
      std::transform(word.begin(), word.end(), symbols.begin(),
                     [&](char byte) { return id_of(byte); });
      return merges_.apply(symbols, out);
    }
    BpeMerges::ShortWord symbols;
    symbols.size = word.size();
    for (std::size_t i = 0; i < word.size(); ++i) symbols.ids[i] = id_of(word[i]);
    for (std::size_t i = 0; i + 1 < word.size(); ++i) {
      symbols.ranks[i] = pair_ranks_[static_cast<unsigned char>(word[i]) * std::size_t{256} +
                                     static_cast<unsigned char>(word[i + 1])];
    }
    merges_.apply(symbols, out);
  }

 private:
  std::int32_t id_of(char byte) const {
    const auto b = static_cast<unsigned char>(byte);
    if (byte_ids_[b] == BpeMerges::kNoToken) fail_unspelled(fmt::format("byte 0x{:02X}", b));
    return byte_ids_[b];
  }

  std::array<std::int32_t, 256> byte_ids_;
  BpeMerges merges_;
  TextIds whole_words_;
  std::vector<std::uint32_t> pair_ranks_;  // [first byte][second byte]
};

struct BpeRules {
  std::string prefix, suffix;  ///< of characters inside a word, of the last one
  std::optional<std::int32_t> unknown = {};
  bool fuses_unknown = false, falls_back_to_bytes = false, ignores_merges = false;
};

/// Byte-pair encoding of characters.
class CharacterBpe final : public TokenModel {
 public:
  CharacterBpe(BpeRules rules, std::vector<BpeMerge> merges, const Vocabulary& vocabulary)
      : rules_(std::move(rules)), merges_(merges), list_(std::move(merges)), ids_(vocabulary) {
    byte_ids_.fill(BpeMerges::kNoToken);
    if (rules_.falls_back_to_bytes) {
      for (std::size_t b = 0; b < 256; ++b) {
        byte_ids_[b] = ids_.find(fmt::format("<0x{:02X}>", b)).value_or(BpeMerges::kNoToken);
      }
    }
    cuts_at_marks_ = rules_.prefix.empty() && rules_.suffix.empty() && !rules_.ignores_merges &&
                     ids_.find(kSpaceMark) && !merges_into_marks();
  }

  void encode(std::string_view word, std::vector<std::int32_t>& out) const override {
    if (rules_.ignores_merges) {
      if (const auto whole = ids_.find(word)) {
        out.push_back(*whole);
        return;
      }
    }
    std::vector<std::int32_t> symbols;
    split_characters(word, symbols);
    merges_.apply(symbols, out);
  }

  Scan cut() const override { return cuts_at_marks_ ? scan_marked_words : nullptr; }
  std::unique_ptr<const TokenModel> for_bytes() const override;

 private:
  /// A token before a mark and one that starts with it may become one.
  bool merges_into_marks() const {
    return std::any_of(list_.begin(), list_.end(), [&](const BpeMerge& merge) {
      return !ids_.token(static_cast<std::size_t>(merge.left))->ends_with(kSpaceMark) &&
             ids_.token(static_cast<std::size_t>(merge.right))->starts_with(kSpaceMark);
    });
  }

  void split_characters(std::string_view word, std::vector<std::int32_t>& symbols) const {
    bool has_unknown = false;  // one that is to be put before the next known character
    const char* const end = word.data() + word.size();
    std::string spelled;
    for_each_character(word, [&](char32_t, std::string_view bytes) {
      std::string_view symbol = bytes;
      if (!rules_.prefix.empty() || !rules_.suffix.empty()) {
        spelled = bytes.data() == word.data() ? "" : rules_.prefix;
        spelled.append(bytes).append(bytes.data() + bytes.size() == end ? rules_.suffix : "");
        symbol = spelled;
      }
      if (const auto id = ids_.find(symbol)) {
        if (has_unknown) symbols.push_back(*rules_.unknown);
        has_unknown = false;
        symbols.push_back(*id);
      } else if (!put_bytes(symbol, symbols)) {
        if (!rules_.unknown) fail_unspelled(fmt::format("{:?}", symbol));
        if (has_unknown && !rules_.fuses_unknown) symbols.push_back(*rules_.unknown);
        has_unknown = true;
      }
    });
    if (has_unknown) symbols.push_back(*rules_.unknown);
  }

  bool put_bytes(std::string_view symbol, std::vector<std::int32_t>& symbols) const {
    const auto id_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (std::any_of(symbol.begin(), symbol.end(),
                    [&](char byte) { return id_of(byte) == BpeMerges::kNoToken; })) {
      return false;
    }
    for (const char byte : symbol) symbols.push_back(id_of(byte));
    return true;
  }

  BpeRules rules_;
  BpeMerges merges_;
  std::vector<BpeMerge> list_;
  const Vocabulary& ids_;
  std::array<std::int32_t, 256> byte_ids_{};  // of <0x00> to <0xFF>
  bool cuts_at_marks_ = false;
};

std::unique_ptr<const TokenModel> CharacterBpe::for_bytes() const {
  if (!rules_.prefix.empty() || !rules_.suffix.empty()) return nullptr;
  std::array<std::int32_t, 256> bytes;
  for (std::size_t b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const auto id = ids_.find(spell_bytes({&byte, 1}));
    // A byte without a token may be unknown or fall back, which is told of characters.
    if (!id && (rules_.unknown || rules_.falls_back_to_bytes)) return nullptr;
    bytes[b] = id.value_or(BpeMerges::kNoToken);
  }
  TextIds whole_words;
  if (rules_.ignores_merges) {
    for (const auto& [token, id] : ids_.ids()) {
      if (auto word = spelled_bytes(token)) whole_words.emplace(std::move(*word), id);
    }
  }
  return std::make_unique<ByteBpe>(bytes, merges_, std::move(whole_words));
}

std::vector<BpeMerge> read_merges(const Section& model, const TokenizerBulk& bulk,
                                  const Vocabulary& vocabulary, std::size_t prefix) {
  const std::string where = model.path_of("merges");
  if (!bulk.has_merges) fail(ErrorCode::data, "{} is missing or not a list", where);
  std::vector<BpeMerge> merges;
  merges.reserve(bulk.merges.size());
  const auto id_of = [&](const std::string& token) {
    const auto id = vocabulary.find(token);
    if (!id) {
      throw Error(
          ErrorCode::data,
          fmt::format("{}[{}]: token \"{}\" is not in the vocabulary", where, merges.size(), token),
          "the vocabulary and the merges of the file do not belong together");
    }
    return *id;
  };
  for (const auto& [left, right] : bulk.merges) {
    const std::string joined = left + right.substr(std::min(prefix, right.size()));
    merges.push_back({id_of(left), id_of(right), id_of(joined)});
  }
  return merges;
}

void check_dropout(const Section& model) {
  const Json* dropout = model.find("dropout");
  if (dropout == nullptr || (dropout->is_number() && dropout->get<double>() == 0.0)) return;
  model.refuse(fmt::format("dropout = {}", dropout->dump()), "set model.dropout to null");
}

}  // namespace

TokenModelPtr make_bpe(const Section& model, const TokenizerBulk& bulk, Vocabulary& vocabulary) {
  check_dropout(model);
  read_vocabulary(model, bulk, vocabulary);
  BpeRules rules{.prefix = model.string("continuing_subword_prefix", ""),
                 .suffix = model.string("end_of_word_suffix", ""),
                 .fuses_unknown = model.flag("fuse_unk", false),
                 .falls_back_to_bytes = model.flag("byte_fallback", false),
                 .ignores_merges = model.flag("ignore_merges", false)};
  auto merges = read_merges(model, bulk, vocabulary, rules.prefix.size());
  if (model.find("unk_token") != nullptr) {
    rules.unknown = vocabulary.find(model.string("unk_token"));
    // A token that the vocabulary lacks is never needed where bytes or all characters are there.
    if (!rules.unknown && !rules.falls_back_to_bytes && model.string("unk_token") != "") {
      fail(ErrorCode::data, "{}: token \"{}\" is not in the vocabulary", model.path_of("unk_token"),
           model.string("unk_token"));
    }
  }
  return std::make_unique<CharacterBpe>(std::move(rules), std::move(merges), vocabulary);
}

}  // namespace heddle
