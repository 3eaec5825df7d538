#include "base/strings.h"
#include "data/formats/byte_stream.h"
#include "data/formats/readers.h"

namespace heddle {
namespace {

/// One record a line; blank lines are none.
class JsonLines : public RecordReader {
 public:
  explicit JsonLines(const InputFile& file) : file_(file), text_(open_bytes(file)) {}

  bool next(Record& record) override {
    while (true) {
      const std::string_view view = text_.view();
      std::size_t end = view.find('\n', searched_);
      const bool has_end = end != std::string_view::npos;
      if (!has_end) {
        searched_ = view.size();
        require_record_fits(view.size(), file_, line_);
        if (text_.more()) continue;
        if (text_.view().empty()) return false;
        end = text_.view().size();
      }
      const std::string_view line = text_.view().substr(0, end);
      const bool is_blank = trim(line).empty();
      if (!is_blank) {
        record = {.form = Record::Form::json, .content = std::string(line), .number = line_};
      }
      text_.take(has_end ? end + 1 : end);
      searched_ = 0;
      ++line_;
      if (!is_blank) return true;
    }
  }

  std::uint64_t position() const override { return text_.position(); }

 private:
  const InputFile file_;
  LookAhead text_;
  std::size_t searched_ = 0;  // of the view: no line break before it
  std::int64_t line_ = 1;
};

}  // namespace

std::unique_ptr<RecordReader> read_json_lines(const InputFile& file) {
  return std::make_unique<JsonLines>(file);
}

}  // namespace heddle
