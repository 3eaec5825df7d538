#include "tokenizer/tokenizer_document.h"

#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"

namespace heddle {
namespace {

constexpr std::size_t kMaxDepth = 64;
/// Objects keep their order in a list that is searched on every insertion.
constexpr std::size_t kMaxKeys = 4096;

/// A score as the reference library reads it: the digits, rounded, over a power of ten, which may
/// be a neighbour of the nearest double. It decides between ways to cut a word that are equally
/// good but for that.
double score_of(std::string number, double nearest) {
  const std::size_t point = number.find('.');
  if (point == std::string::npos) return nearest;
  number.erase(point, 1);
  std::int64_t digits = 0;
  const char* const end = number.data() + number.size();
  const auto read = std::from_chars(number.data(), end, digits);
  if (read.ec != std::errc() || read.ptr != end) return nearest;
  const std::string power = fmt::format("1e{}", number.size() - point);
  return static_cast<double>(digits) / std::strtod(power.c_str(), nullptr);
}

/// Receives the parser's events; builds the small part as a tree.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(std::string_view text, const std::string& where, TokenizerBulk& bulk)
      : text_(text), where_(where), bulk_(bulk) {}

  Json take() { return std::move(root_); }

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override {
    if (mode_ == Mode::pieces) return piece_score(static_cast<double>(v));
    return mode_ == Mode::vocab ? vocab_id(v) : value(v);
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (mode_ == Mode::vocab)
      return vocab_id(static_cast<std::int64_t>(v >> 1 > INT64_MAX / 2 ? INT64_MAX : v));
    return mode_ == Mode::pieces ? piece_score(static_cast<double>(v)) : value(v);
  }
  bool number_float(number_float_t v, const string_t& text) override {
    return mode_ == Mode::pieces ? piece_score(score_of(text, v)) : value(v);
  }
  bool string(string_t& v) override {
    if (mode_ == Mode::merges) {
      return open_.empty() ? joined_merge(v) : merge_part(v);
    }
    if (mode_ == Mode::pieces) return piece_text(v);
    return value(std::move(v));
  }
  bool binary(binary_t&) override { return true; }  // JSON text has none

  bool start_object(std::size_t) override {
    if (mode_ == Mode::rest && is_bulk("vocab")) {
      begin_bulk(Mode::vocab, bulk_.has_vocab, "vocab");
      return true;
    }
    return open(Json::object());
  }
  bool key(string_t& v) override {
    if (mode_ == Mode::vocab) {
      key_ = std::move(v);
      return true;
    }
    if (stack_.size() == 1) section_ = v;
    if (stack_.back()->size() >= kMaxKeys)
      fail(ErrorCode::data, "{}: too many keys in one object", where_);
    if (stack_.back()->contains(v)) fail(ErrorCode::data, "{}: key \"{}\" given twice", where_, v);
    key_ = std::move(v);
    return true;
  }
  bool end_object() override {
    if (mode_ == Mode::vocab) {
      mode_ = Mode::rest;
    } else {
      stack_.pop_back();
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (mode_ == Mode::rest && is_bulk("merges")) {
      begin_bulk(Mode::merges, bulk_.has_merges, "merges");
      return true;
    }
    if (mode_ == Mode::rest && is_bulk("vocab")) {
      begin_bulk(Mode::pieces, bulk_.has_pieces, "vocab");
      return true;
    }
    if ((mode_ == Mode::merges || mode_ == Mode::pieces) && open_.empty()) {
      open_ = "[";
      if (mode_ == Mode::merges) bulk_.merges.emplace_back();
      if (mode_ == Mode::pieces) bulk_.pieces.emplace_back();
      return true;
    }
    return open(Json::array());
  }
  bool end_array() override {
    if (mode_ == Mode::rest) {
      stack_.pop_back();
    } else if (open_.empty()) {
      mode_ = Mode::rest;
    } else {
      if (open_ != "[ab") bad_entry();
      open_.clear();
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    throw json_error(text_, where_, position, e.what());
  }

 private:
  enum class Mode { rest, vocab, pieces, merges };

  bool is_bulk(std::string_view key) const {
    return stack_.size() == 2 && stack_.back()->is_object() && section_ == "model" && key_ == key;
  }
  void begin_bulk(Mode mode, bool& seen, const char* name) {
    if (seen) fail(ErrorCode::data, "{}: model.{} given twice", where_, name);
    seen = true;
    mode_ = mode;
  }
  [[noreturn]] void bad_merge() const {
    fail(ErrorCode::data,
         "{}: model.merges[{}] is not a pair of tokens (\"a b\" or [\"a\", \"b\"])", where_,
         bulk_.merges.size() - (open_.empty() ? 0 : 1));
  }
  [[noreturn]] void bad_piece() const {
    fail(ErrorCode::data, "{}: model.vocab[{}] is not a pair of a token and its score", where_,
         bulk_.pieces.size() - (open_.empty() ? 0 : 1));
  }
  [[noreturn]] void bad_entry() const {
    if (mode_ == Mode::pieces) bad_piece();
    bad_merge();
  }
  [[noreturn]] void bad_vocab() const {
    fail(ErrorCode::data, "{}: model.vocab[\"{}\"] is not an integer", where_, key_);
  }

  bool vocab_id(std::int64_t id) {
    bulk_.vocab.emplace_back(std::move(key_), id);
    return true;
  }
  bool joined_merge(const std::string& v) {
    if (v.starts_with("#version")) return true;
    const auto space = v.find(' ');
    if (space == std::string::npos || v.find(' ', space + 1) != std::string::npos) bad_merge();
    bulk_.merges.emplace_back(v.substr(0, space), v.substr(space + 1));
    return true;
  }
  bool merge_part(std::string& v) {
    if (open_ == "[") {
      bulk_.merges.back().first = std::move(v);
      open_ = "[a";
    } else if (open_ == "[a") {
      bulk_.merges.back().second = std::move(v);
      open_ = "[ab";
    } else {
      bad_merge();
    }
    return true;
  }

  bool piece_text(std::string& v) {
    if (open_ != "[") bad_piece();
    bulk_.pieces.back().first = std::move(v);
    open_ = "[a";
    return true;
  }
  bool piece_score(double score) {
    if (open_ != "[a") bad_piece();
    bulk_.pieces.back().second = score;
    open_ = "[ab";
    return true;
  }

  Json* place(Json v) {
    if (mode_ == Mode::vocab) bad_vocab();
    if (mode_ != Mode::rest) bad_entry();
    if (stack_.empty()) {
      root_ = std::move(v);
      return &root_;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    return &(parent[key_] = std::move(v));
  }
  bool value(Json v) {
    place(std::move(v));
    return true;
  }
  bool open(Json container) {
    if (stack_.size() >= kMaxDepth) {
      fail(ErrorCode::data, "{}: JSON nested deeper than {} levels", where_, kMaxDepth);
    }
    stack_.push_back(place(std::move(container)));
    return true;
  }

  std::string_view text_;
  const std::string& where_;
  TokenizerBulk& bulk_;
  Json root_;
  // Containers being filled. A parent is not touched while a child is open, so they stay in place.
  std::vector<Json*> stack_;
  std::string key_, section_;
  Mode mode_ = Mode::rest;
  std::string open_;  // the pair being read as a list: "[", "[a", "[ab"
};

}  // namespace

Json read_tokenizer_document(std::string_view text, const std::string& where, TokenizerBulk& bulk) {
  Reader reader(text, where, bulk);
  Json::sax_parse(text, &reader);
  return reader.take();
}

}  // namespace heddle
