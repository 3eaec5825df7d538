#include <algorithm>

#include "base/error.h"
#include "data/formats/byte_stream.h"
#include "data/formats/readers.h"

namespace heddle {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

/// The values of a list, or values that follow each other. Only where they end is found out here;
/// what is inside is parsed by whoever understands the record.
class JsonValues : public RecordReader {
 public:
  explicit JsonValues(const InputFile& file) : file_(file), text_(open_bytes(file)) {}

  bool next(Record& record) override {
    if (!is_begun_) begin();
    if (has_ended_) return false;
    if (is_list_ && !begin_element()) return false;
    const int first = skip_space();
    if (first < 0) {
      if (is_list_) refuse("the list has no end");
      return false;
    }
    const std::size_t size = value_size();
    const std::string_view value = text_.view().substr(0, size);
    record = {.form = Record::Form::json, .content = std::string(value), .number = line_};
    take(size);
    ++count_;
    return true;
  }

  std::uint64_t position() const override { return text_.position(); }

 private:
  void begin() {
    is_begun_ = true;
    is_list_ = skip_space() == '[';
    if (is_list_) take(1);
  }

  /// Goes to the next element of the list; false at its end, after which nothing may follow.
  bool begin_element() {
    int c = skip_space();
    if (c == ']') {
      take(1);
      if (skip_space() >= 0) refuse("something follows the list");
      has_ended_ = true;
      return false;
    }
    if (count_ == 0) return true;
    if (c < 0) refuse("the list has no end");
    if (c != ',') refuse("a comma is missing between elements of the list");
    take(1);
    c = skip_space();
    if (c == ']') refuse("a comma stands before the end of the list");
    return true;
  }

  /// The character after white space, which is taken; -1 at the end.
  int skip_space() {
    while (true) {
      const std::size_t at = text_.view().find_first_not_of(kSpace);
      if (at != std::string_view::npos) {
        take(at);
        return static_cast<unsigned char>(text_.view().front());
      }
      take(text_.view().size());
      if (!text_.more()) return -1;
    }
  }

  /// Size of the value at the beginning of the view: up to the bracket that closes it, or, of
  /// numbers, words and texts, to what separates it.
  std::size_t value_size() {
    std::size_t at = 0;
    int depth = 0;
    bool in_string = false;
    while (true) {
      const std::string_view view = text_.view();
      for (; at < view.size(); ++at) {
        const char c = view[at];
        if (in_string) {
          at = view.find_first_of("\"\\", at);
          if (at == std::string_view::npos) at = view.size();
          if (at == view.size()) break;
          if (view[at] == '\\') {
            if (at + 1 == view.size()) break;  // what is escaped is not here yet
            ++at;
          } else {
            in_string = false;
            if (depth == 0) return at + 1;
          }
          continue;
        }
        if (c == '"') {
          in_string = true;
        } else if (c == '{' || c == '[') {
          ++depth;
        } else if (c == '}' || c == ']') {
          if (--depth <= 0) return depth == 0 ? at + 1 : std::max<std::size_t>(at, 1);
        } else if (depth == 0 && at > 0 && (c == ',' || kSpace.find(c) != std::string_view::npos)) {
          return at;
        }
      }
      require_record_fits(view.size(), file_, line_);
      if (text_.more()) continue;
      if (depth > 0 || in_string) refuse("the value that begins here has no end");
      return text_.view().size();
    }
  }

  void take(std::size_t count) {
    const std::string_view taken = text_.view().substr(0, count);
    line_ += std::count(taken.begin(), taken.end(), '\n');
    text_.take(count);
  }

  [[noreturn]] void refuse(const char* what) const {
    throw Error(ErrorCode::data,
                fmt::format("{}: not valid JSON: {}", place_of(file_, line_), what),
                "get the whole file, or take it as prose with `heddle tokenize --as text`");
  }

  const InputFile file_;
  LookAhead text_;
  bool is_begun_ = false, is_list_ = false, has_ended_ = false;
  std::int64_t line_ = 1, count_ = 0;
};

}  // namespace

std::unique_ptr<RecordReader> read_json_values(const InputFile& file) {
  return std::make_unique<JsonValues>(file);
}

}  // namespace heddle
