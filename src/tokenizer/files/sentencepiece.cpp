#include <algorithm>
#include <bit>
#include <unordered_map>

#include "base/error.h"
#include "base/strings.h"
#include "tokenizer/files/kinds.h"
#include "tokenizer/files/protobuf.h"
#include "tokenizer/section.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

constexpr const char* kMark = "\xE2\x96\x81";  // SentencePiece's character for a space

struct SentencePiece {
  enum Type : std::uint64_t { normal = 1, unknown, control, user_defined, unused, byte };
  std::string text;
  float score = 0;
  std::uint64_t type = normal;
};

/// What of a SentencePiece model decides about ids (sentencepiece_model.proto; numbers of fields
/// are that file's).
struct SentencePieceModel {
  enum Kind : std::uint64_t { unigram = 1, bpe = 2 };
  std::vector<SentencePiece> pieces;
  std::uint64_t kind = unigram;
  bool falls_back_to_bytes = false, marks_ends = false;
  std::string rules;  ///< compiled normalisation
  bool adds_prefix = true, removes_extra_spaces = true, escapes_spaces = true;
};

SentencePiece read_piece(std::string_view message, const std::string& where) {
  SentencePiece piece;
  ProtoReader reader(message, where);
  for (ProtoField field; reader.next(field);) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) {
      piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
    }
    if (field.number == 3) piece.type = field.value;
  }
  if (piece.text.empty() || valid_utf8_prefix(piece.text) != piece.text.size()) {
    fail(ErrorCode::data, "{}: a piece is empty or not valid UTF-8", where);
  }
  return piece;
}

void read_trainer(std::string_view message, const std::string& where, SentencePieceModel& model) {
  ProtoReader reader(message, where);
  for (ProtoField field; reader.next(field);) {
    if (field.number == 3) model.kind = field.value;
    if (field.number == 24) model.marks_ends = field.value != 0;
    if (field.number == 35) model.falls_back_to_bytes = field.value != 0;
  }
}

void read_normalizer(std::string_view message, const std::string& where,
                     SentencePieceModel& model) {
  ProtoReader reader(message, where);
  for (ProtoField field; reader.next(field);) {
    if (field.number == 2) model.rules = field.bytes;
    if (field.number == 3) model.adds_prefix = field.value != 0;
    if (field.number == 4) model.removes_extra_spaces = field.value != 0;
    if (field.number == 5) model.escapes_spaces = field.value != 0;
  }
}

SentencePieceModel read_model(std::string_view bytes, const std::string& where) {
  SentencePieceModel model;
  ProtoReader reader(bytes, where);
  for (ProtoField field; reader.next(field);) {
    if (field.number == 1) model.pieces.push_back(read_piece(field.bytes, where));
    if (field.number == 2) read_trainer(field.bytes, where, model);
    if (field.number == 3) read_normalizer(field.bytes, where, model);
    if (model.pieces.size() > kMaxTokens) fail(ErrorCode::data, "{}: too many pieces", where);
  }
  if (model.pieces.empty()) fail(ErrorCode::data, "{} has no pieces", where);
  const auto refuse_if = [&](bool is_so, const char* what) {
    if (is_so) fail(ErrorCode::data, "{}: {} is not supported", where, what);
  };
  refuse_if(model.kind != model.unigram && model.kind != model.bpe,
            "a model of other than BPE or Unigram");
  refuse_if(model.marks_ends, "treat_whitespace_as_suffix");
  refuse_if(!model.escapes_spaces, "escape_whitespaces = false");
  return model;
}

std::string to_base64(std::string_view bytes) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
    }
  }
  return out;
}

Json normalizer_of(const SentencePieceModel& model) {
  Json steps = Json::array();
  const auto replace = [&](Json pattern, const char* content) {
    steps.push_back({{"type", "Replace"}, {"pattern", pattern}, {"content", content}});
  };
  if (!model.rules.empty()) {
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(model.rules)}});
  }
  if (model.removes_extra_spaces) {
    replace({{"Regex", fmt::format(R"(\A +|[ {}]+\z)", kMark)}}, "");
    replace({{"Regex", " {2,}"}}, " ");
  }
  if (model.adds_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kMark}});
  replace({{"String", " "}}, kMark);
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

Json decoder_of(const SentencePieceModel& model) {
  Json steps =
      Json::array({{{"type", "Replace"}, {"pattern", {{"String", kMark}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}});
  if (model.adds_prefix) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", steps}};
}

/// All ways to make a piece of two others, in the order of the scores of what they make.
Json merges_of(const SentencePieceModel& model) {
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    if (piece.type == SentencePiece::normal || piece.type == SentencePiece::user_defined) {
      ids.emplace(piece.text, id);
    }
  }
  struct Way {
    float score;
    std::size_t left, right;
  };
  std::vector<Way> ways;
  for (const auto& piece : ids) {
    const auto& text = piece.first;  // no binding: clang 14 captures none
    for_each_character(text, [&](char32_t, std::string_view rest) {
      const auto cut = static_cast<std::size_t>(rest.data() - text.data());
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (cut == 0 || left == ids.end() || right == ids.end()) return;
      ways.push_back({model.pieces[piece.second].score, left->second, right->second});
    });
  }
  std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) {
    return std::tuple(-a.score, a.left, a.right) < std::tuple(-b.score, b.left, b.right);
  });
  Json merges = Json::array();
  for (const Way& way : ways) {
    merges.push_back({model.pieces[way.left].text, model.pieces[way.right].text});
  }
  return merges;
}

/// `model` as text: an object of so many keys would be slow to build.
std::string model_of(const SentencePieceModel& model, const std::string& where) {
  const auto unknown =
      std::find_if(model.pieces.begin(), model.pieces.end(),
                   [](const SentencePiece& piece) { return piece.type == SentencePiece::unknown; });
  if (unknown == model.pieces.end()) fail(ErrorCode::data, "{} has no unknown piece", where);
  const bool is_unigram = model.kind == model.unigram;
  std::string vocab;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    const std::string text = Json(piece.text).dump();
    vocab += id == 0 ? "" : ",";
    vocab += is_unigram ? fmt::format("[{},{}]", text, Json(piece.score).dump())
                        : fmt::format("{}:{}", text, id);
  }
  if (is_unigram) {
    return fmt::format(R"({{"type":"Unigram","unk_id":{},"byte_fallback":{},"vocab":[{}]}})",
                       unknown - model.pieces.begin(), model.falls_back_to_bytes, vocab);
  }
  return fmt::format(
      R"({{"type":"BPE","unk_token":{},"fuse_unk":true,"byte_fallback":{},"vocab":{{{}}},"merges":{}}})",
      Json(unknown->text).dump(), model.falls_back_to_bytes, vocab, merges_of(model).dump());
}

Json added_tokens_of(const SentencePieceModel& model) {
  Json added = Json::array();
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    const bool is_special =
        piece.type == SentencePiece::unknown || piece.type == SentencePiece::control;
    if (is_special || piece.type == SentencePiece::user_defined) {
      added.push_back(added_token_entry(static_cast<std::int64_t>(id), piece.text, is_special));
    }
  }
  return added;
}

/// What tokenizer_config.json says, or what its class does without a word: Llama and Gemma put
/// their first token before texts, T5 its last one behind.
Json template_of(const SentencePieceModel& model, const std::filesystem::path& path) {
  const Json config = json_beside(path, "tokenizer_config.json");
  const std::string kind = configured_text(config, "tokenizer_class");
  const auto tokens = [&](const char* flag, bool otherwise, const char* key, const char* usual) {
    std::vector<std::pair<std::string, std::int64_t>> found;
    const auto at = config.find(flag);
    if (!(at != config.end() && at->is_boolean() ? at->get<bool>() : otherwise)) return found;
    std::string token = configured_token(config, key);
    if (token.empty()) token = usual;
    for (std::size_t id = 0; id < model.pieces.size(); ++id) {
      if (model.pieces[id].text == token) found.emplace_back(token, static_cast<std::int64_t>(id));
    }
    return found;
  };
  const bool begins = kind.starts_with("Llama") || kind.starts_with("Gemma");
  return surrounding_template(tokens("add_bos_token", begins, "bos_token", "<s>"),
                              tokens("add_eos_token", kind.starts_with("T5"), "eos_token", "</s>"));
}

}  // namespace

std::string from_sentencepiece(std::string_view bytes, const std::filesystem::path& path) {
  const SentencePieceModel model = read_model(bytes, path.string());
  // Words, each with the marks before it: no piece goes on behind a mark that follows a letter.
  Json words = {{"type", "Split"},
                {"pattern", {{"Regex", fmt::format("{0}*[^{0}]+|{0}+", kMark)}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  const bool crosses =
      std::any_of(model.pieces.begin(), model.pieces.end(), [](const SentencePiece& piece) {
        const std::size_t letter = piece.text.find_first_not_of(kMark);
        return letter != std::string::npos && piece.text.find(kMark, letter) != std::string::npos;
      });
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added_tokens_of(model)},
                     {"normalizer", normalizer_of(model)},
                     {"pre_tokenizer", crosses ? Json(nullptr) : words},
                     {"post_processor", template_of(model, path)},
                     {"decoder", decoder_of(model)}};
  return with_model(json, model_of(model, path.string()));
}

}  // namespace heddle
