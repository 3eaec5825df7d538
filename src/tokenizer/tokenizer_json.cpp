#include "tokenizer/tokenizer_json.h"

#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer_document.h"

namespace heddle {
namespace {

/// Sixteen times the largest vocabulary in use; bounds what a lying id can make us allocate.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 22;
constexpr int kMaxSteps = 32;

/// Typed access to an object of the file, with messages that name the key.
class Section {
 public:
  Section(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json.is_object()) fail(ErrorCode::data, "{} is not an object", path_);
  }

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const {
    return fmt::format("{}{}{}", path_, path_.ends_with(": ") ? "" : ".", key);
  }

  /// The value, or nullptr when absent or null.
  const Json* find(std::string_view key) const {
    const auto at = json_.find(key);
    return at == json_.end() || at->is_null() ? nullptr : &*at;
  }
  const Json& at(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) fail(ErrorCode::data, "{} is missing", path_of(key));
    return *value;
  }
  bool flag(std::string_view key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(ErrorCode::data, "{} is not true or false", path_of(key));
    return value->get<bool>();
  }
  const std::string& string(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail(ErrorCode::data, "{} is not a string", path_of(key));
    return value.get_ref<const std::string&>();
  }
  const Json& array(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_array()) fail(ErrorCode::data, "{} is not a list", path_of(key));
    return value;
  }
  /// A token id, inside the limits but not necessarily in the vocabulary.
  std::int32_t id(std::string_view key) const { return checked_id(at(key), path_of(key)); }

  static std::int32_t checked_id(const Json& value, const std::string& path) {
    if (!value.is_number_integer()) fail(ErrorCode::data, "{} is not an integer", path);
    if (value.is_number_unsigned()
            ? value.get<std::uint64_t>() >= kMaxTokens
            : value.get<std::int64_t>() < 0 || value.get<std::int64_t>() >= kMaxTokens) {
      fail(ErrorCode::data, "{} = {} is no token id (0 to {})", path, value.dump(), kMaxTokens - 1);
    }
    return value.get<std::int32_t>();
  }

  [[noreturn]] void refuse(std::string_view what, const std::string& hint) const {
    throw Error(ErrorCode::data, fmt::format("{}: {} is not supported", path_, what), hint);
  }

 private:
  const Json& json_;
  std::string path_;
};

const char* const kByteLevelOnly =
    "Heddle reads byte-level BPE tokenizers (GPT-2, GPT-NeoX, Llama 3, Qwen and relatives)";

/// Vocabulary, merges and the flags of the model.
class ModelReader {
 public:
  ModelReader(const Section& model, const TokenizerBulk& bulk, TokenizerParts& parts)
      : model_(model), bulk_(bulk), parts_(parts) {}

  void read() {
    check_options();
    read_vocab();
    read_merges();
    parts_.ignore_merges = model_.flag("ignore_merges", false);
    check_unknown_token();
  }

  /// The id of a vocabulary key, as the file spells it.
  std::optional<std::int32_t> id_of(std::string_view key) const {
    const auto at = ids_.find(key);
    return at == ids_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  void check_options() const {
    // Files from before the "type" key have merges all the same.
    const std::string type =
        model_.find("type") == nullptr && bulk_.has_merges ? "BPE" : model_.string("type");
    if (type != "BPE") model_.refuse(fmt::format("model type {}", type), kByteLevelOnly);
    if (const Json* dropout = model_.find("dropout")) {
      if (!dropout->is_number() || dropout->get<double>() != 0.0) {
        model_.refuse(fmt::format("dropout = {}", dropout->dump()), "set model.dropout to null");
      }
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model_.find(key) != nullptr && !model_.string(key).empty()) {
        model_.refuse(fmt::format("{} = \"{}\"", key, model_.string(key)), kByteLevelOnly);
      }
    }
    if (model_.flag("byte_fallback", false)) model_.refuse("byte_fallback", kByteLevelOnly);
    model_.flag("fuse_unk", false);
    if (!bulk_.has_vocab)
      fail(ErrorCode::data, "{} is missing or not an object", model_.path_of("vocab"));
    if (!bulk_.has_merges)
      fail(ErrorCode::data, "{} is missing or not a list", model_.path_of("merges"));
    if (bulk_.vocab.empty()) fail(ErrorCode::data, "{} is empty", model_.path_of("vocab"));
  }

  void read_vocab() {
    std::int64_t highest = 0;
    for (const auto& [key, id] : bulk_.vocab) {
      if (id < 0 || id >= kMaxTokens) {
        fail(ErrorCode::data, "{}[\"{}\"] = {} is no token id (0 to {})", model_.path_of("vocab"),
             key, id, kMaxTokens - 1);
      }
      highest = std::max(highest, id);
    }
    const auto size = static_cast<std::size_t>(highest) + 1;
    parts_.tokens.resize(size);
    parts_.is_word.resize(size);
    parts_.byte_ids.fill(Bpe::kNoToken);
    ids_.reserve(bulk_.vocab.size());
    std::vector<bool> taken(size);
    for (const auto& [key, id] : bulk_.vocab) {
      const auto at = static_cast<std::size_t>(id);
      if (!ids_.emplace(key, static_cast<std::int32_t>(id)).second) {
        fail(ErrorCode::data, "{}: token \"{}\" given twice", model_.path_of("vocab"), key);
      }
      if (taken[at]) fail(ErrorCode::data, "{}: id {} given twice", model_.path_of("vocab"), id);
      taken[at] = true;
      // A key with characters outside the alphabet can only be an added token, kept as it is.
      auto bytes = spelled_bytes(key);
      parts_.is_word[at] = bytes.has_value();
      parts_.tokens[at] = bytes ? std::move(*bytes) : key;
      if (parts_.is_word[at] && parts_.tokens[at].size() == 1) {
        parts_.byte_ids[static_cast<unsigned char>(parts_.tokens[at][0])] =
            static_cast<std::int32_t>(id);
      }
    }
  }

  void read_merges() {
    parts_.merges.reserve(bulk_.merges.size());
    std::string joined;
    for (std::size_t i = 0; i < bulk_.merges.size(); ++i) {
      const auto& [left, right] = bulk_.merges[i];
      joined.assign(left).append(right);
      parts_.merges.push_back({merge_id(left, i), merge_id(right, i), merge_id(joined, i)});
    }
  }
  std::int32_t merge_id(const std::string& token, std::size_t merge) const {
    const auto at = ids_.find(token);
    if (at == ids_.end()) {
      throw Error(ErrorCode::data,
                  fmt::format("{}[{}]: token \"{}\" is not in the vocabulary",
                              model_.path_of("merges"), merge, token),
                  "the vocabulary and the merges of the file do not belong together");
    }
    return at->second;
  }

  void check_unknown_token() const {
    if (model_.find("unk_token") == nullptr) return;
    model_.string("unk_token");
    for (std::size_t b = 0; b < 256; ++b) {
      if (parts_.byte_ids[b] == Bpe::kNoToken) {
        model_.refuse(fmt::format("unk_token with a vocabulary that lacks byte 0x{:02X}", b),
                      kByteLevelOnly);
      }
    }
  }

  const Section& model_;
  const TokenizerBulk& bulk_;
  TokenizerParts& parts_;
  std::unordered_map<std::string_view, std::int32_t> ids_;
};

void read_added_tokens(const Section& file, const ModelReader& model, TokenizerParts& parts) {
  if (file.find("added_tokens") == nullptr) return;
  const Json& list = file.array("added_tokens");
  std::unordered_set<std::string> seen;
  const auto vocabulary = static_cast<std::int32_t>(parts.tokens.size());
  std::vector<bool> taken(static_cast<std::size_t>(vocabulary));
  for (std::size_t b = 0; b < taken.size(); ++b)
    taken[b] = parts.is_word[b] || !parts.tokens[b].empty();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Section entry(list[i], fmt::format("{}[{}]", file.path_of("added_tokens"), i));
    AddedToken token{.id = entry.id("id"),
                     .content = entry.string("content"),
                     .single_word = entry.flag("single_word", false),
                     .lstrip = entry.flag("lstrip", false),
                     .rstrip = entry.flag("rstrip", false),
                     .normalized = entry.flag("normalized", !entry.flag("special", false)),
                     .special = entry.flag("special", false)};
    const auto id = static_cast<std::size_t>(token.id);
    if (token.content.empty()) fail(ErrorCode::data, "{}.content is empty", entry.path());
    if (!seen.insert(token.content).second) {
      fail(ErrorCode::data, "{}: token \"{}\" given twice", entry.path(), token.content);
    }
    const auto in_vocab = model.id_of(token.content);
    if (in_vocab ? *in_vocab != token.id : id < taken.size() && taken[id]) {
      fail(ErrorCode::data, "{}: \"{}\" has id {}, but the vocabulary has {}", entry.path(),
           token.content, token.id,
           in_vocab ? fmt::format("id {} for it", *in_vocab) : "another token there");
    }
    if (id >= taken.size()) {
      taken.resize(id + 1);
      parts.tokens.resize(id + 1);
      parts.is_word.resize(id + 1);
    }
    taken[id] = true;
    // One that is also an ordinary word keeps the bytes that word stands for.
    if (!parts.is_word[id]) parts.tokens[id] = token.content;
    parts.added.push_back(std::move(token));
  }
}

bool reads_nfc(const Section& normalizer, int depth = 0) {
  const std::string& type = normalizer.string("type");
  if (type == "NFC") return true;
  if (type != "Sequence" || depth > kMaxSteps) {
    normalizer.refuse(fmt::format("normalizer {}", type), "Heddle knows NFC and no normalizer");
  }
  bool found = false;
  const Json& list = normalizer.array("normalizers");
  for (std::size_t i = 0; i < list.size(); ++i) {
    found |= reads_nfc(
        Section(list[i], fmt::format("{}[{}]", normalizer.path_of("normalizers"), i)), depth + 1);
  }
  return found;
}

/// Translates pre_tokenizer. ByteLevel must come last, as what follows it would see its alphabet
/// instead of the text.
class PreTokenizerReader {
 public:
  explicit PreTokenizerReader(PreTokenizer& out) : out_(out) {}

  void read(const Section& step) {
    const std::string& type = step.string("type");
    if (type == "Sequence") {
      const Json& list = step.array("pretokenizers");
      for (std::size_t i = 0; i < list.size(); ++i) {
        read(Section(list[i], fmt::format("{}[{}]", step.path_of("pretokenizers"), i)));
      }
      return;
    }
    if (has_byte_level_) step.refuse(fmt::format("{} after ByteLevel", type), kByteLevelOnly);
    if (++steps_ > kMaxSteps)
      step.refuse(fmt::format("more than {} pre-tokenizers", kMaxSteps), kByteLevelOnly);
    if (type == "ByteLevel") {
      read_byte_level(step);
    } else if (type == "Split") {
      read_split(step);
    } else if (type == "Digits") {
      out_.add(step.flag("individual_digits", false) ? scan_single_numbers : scan_number_runs);
    } else {
      step.refuse(fmt::format("pre-tokenizer {}", type), kByteLevelOnly);
    }
  }
  bool has_byte_level() const { return has_byte_level_; }

 private:
  void read_byte_level(const Section& step) {
    has_byte_level_ = true;
    if (step.flag("add_prefix_space", true)) out_.add(PreTokenizer::PrefixSpace{});
    if (step.flag("use_regex", true)) out_.add(scan_gpt2);
  }

  void read_split(const Section& step) {
    const Section pattern(step.at("pattern"), step.path_of("pattern"));
    RegexSplit::Rule rule;
    rule.is_literal = pattern.find("String") != nullptr;
    rule.pattern = pattern.string(rule.is_literal ? "String" : "Regex");
    rule.behavior = behavior(step);
    rule.invert = step.flag("invert", false);
    // These patterns match every character, so keeping all pieces and keeping the matches are one.
    const bool keeps_matches = rule.behavior == SplitBehavior::isolated ||
                               (rule.behavior == SplitBehavior::removed && rule.invert);
    const Scan scan = rule.is_literal || !keeps_matches ? nullptr : scanner_for(rule.pattern);
    if (scan != nullptr) {
      out_.add(scan);
    } else {
      out_.add(RegexSplit(std::move(rule), step.path_of("pattern")));
    }
  }

  static SplitBehavior behavior(const Section& step) {
    const std::string& name = step.string("behavior");
    if (name == "Isolated") return SplitBehavior::isolated;
    if (name == "Removed") return SplitBehavior::removed;
    if (name == "Contiguous") return SplitBehavior::contiguous;
    if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
    if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
    step.refuse(fmt::format("behavior {}", name), kByteLevelOnly);
  }

  PreTokenizer& out_;
  bool has_byte_level_ = false;
  int steps_ = 0;
};

void append_special_ids(const Section& step, const std::string& name, std::size_t vocab_size,
                        std::vector<std::int32_t>& out) {
  const Section tokens(step.at("special_tokens"), step.path_of("special_tokens"));
  const Section token(tokens.at(name), tokens.path_of(name));
  for (const Json& value : token.array("ids")) {
    const auto id = Section::checked_id(value, token.path_of("ids"));
    if (static_cast<std::size_t>(id) >= vocab_size) {
      fail(ErrorCode::data, "{}: id {} is not in the vocabulary", token.path_of("ids"), id);
    }
    out.push_back(id);
  }
}

void read_template(const Section& step, TokenizerParts& parts) {
  std::vector<std::int32_t> before, after;
  bool seen_text = false;
  const Json& pieces = step.array("single");
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Section piece(pieces[i], fmt::format("{}[{}]", step.path_of("single"), i));
    if (const Json* special = piece.find("SpecialToken")) {
      const Section token(*special, piece.path_of("SpecialToken"));
      append_special_ids(step, token.string("id"), parts.tokens.size(), seen_text ? after : before);
    } else {
      const Section sequence(piece.at("Sequence"), piece.path_of("Sequence"));
      if (seen_text || sequence.string("id") != "A")
        piece.refuse("a template with other than one text A", "");
      seen_text = true;
    }
  }
  if (!seen_text)
    fail(ErrorCode::data, "{} does not contain the text (Sequence A)", step.path_of("single"));
  parts.prefix.insert(parts.prefix.begin(), before.begin(), before.end());
  parts.suffix.insert(parts.suffix.end(), after.begin(), after.end());
}

void read_post_processor(const Section& step, TokenizerParts& parts) {
  const std::string& type = step.string("type");
  if (type == "TemplateProcessing") {
    read_template(step, parts);
  } else if (type == "Sequence") {
    const Json& list = step.array("processors");
    for (std::size_t i = 0; i < list.size(); ++i) {
      read_post_processor(Section(list[i], fmt::format("{}[{}]", step.path_of("processors"), i)),
                          parts);
    }
  } else if (type != "ByteLevel") {  // that one trims offsets only
    step.refuse(fmt::format("post-processor {}", type),
                "Heddle knows TemplateProcessing, ByteLevel and Sequence");
  }
}

void check_decoder(const Section& decoder) {
  const std::string& type = decoder.string("type");
  if (type != "ByteLevel") decoder.refuse(fmt::format("decoder {}", type), kByteLevelOnly);
}

}  // namespace

TokenizerParts parse_tokenizer_json(std::string_view text, const std::string& where) {
  TokenizerBulk bulk;
  const Json document = read_tokenizer_document(text, where, bulk);
  if (!document.is_object()) fail(ErrorCode::data, "{}: not an object", where);
  const Section file(document, where + ": ");
  const auto section = [&](const char* key) { return Section(file.at(key), file.path_of(key)); };
  for (const char* key : {"truncation", "padding"}) {
    if (file.find(key) != nullptr) {
      throw Error(ErrorCode::data, fmt::format("{}: {} is not supported", where, key),
                  fmt::format("set \"{}\" to null in the file", key));
    }
  }
  TokenizerParts parts;
  const Section model_section = section("model");
  ModelReader model(model_section, bulk, parts);
  model.read();
  read_added_tokens(file, model, parts);
  if (file.find("normalizer") != nullptr) parts.normalizes_nfc = reads_nfc(section("normalizer"));
  PreTokenizerReader pretokenizer(parts.pretokenizer);
  if (file.find("pre_tokenizer") != nullptr) pretokenizer.read(section("pre_tokenizer"));
  if (!pretokenizer.has_byte_level()) {
    throw Error(ErrorCode::data, fmt::format("{}: pre_tokenizer has no ByteLevel step", where),
                kByteLevelOnly);
  }
  if (file.find("post_processor") != nullptr) read_post_processor(section("post_processor"), parts);
  if (file.find("decoder") != nullptr) check_decoder(section("decoder"));
  return parts;
}

}  // namespace heddle
