#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "data/formats/byte_stream.h"
#include "data/formats/readers.h"

namespace heddle {
namespace {

/// A document is cut into parts of about this size, where it may be cut.
constexpr std::size_t kLongestPart = std::size_t{4} << 20;

/// Documents of a text file. Those of white space alone are none.
class PlainText : public RecordReader {
 public:
  PlainText(const InputFile& file, const DocumentFormat& format)
      : format_(format), text_(open_bytes(file)) {
    HEDDLE_CHECK(format.split != TextSplit::delimiter || !format.delimiter.empty(),
                 "an empty delimiter");
  }

  bool next(Record& record) override {
    while (const auto document = find()) {
      const std::string_view content = text_.view().substr(document->begin, document->size);
      const bool continues = std::exchange(is_open_, document->goes_on);
      const bool is_blank = !continues && trim(content).empty();
      if (!is_blank) {
        record = {.content = std::string(content),
                  .number = line_ + lines_in(document->begin),
                  .continues = continues,
                  .goes_on = document->goes_on};
      }
      line_ += lines_in(document->next);
      text_.take(document->next);
      if (!is_blank) return true;
    }
    return false;
  }

  std::uint64_t position() const override { return text_.position(); }

 private:
  /// Where a document or a part of it lies in the view, and where what follows it begins.
  struct Place {
    std::size_t begin, size, next;
    bool goes_on = false;
  };

  std::optional<Place> find() {
    switch (format_.split) {
      case TextSplit::whole_file: return find_all();
      case TextSplit::blank_lines: return find_paragraph();
      case TextSplit::delimiter: return find_delimited();
    }
    return std::nullopt;
  }

  /// A part, where more of a document is in view than has to be. None of the last `kept` bytes.
  std::optional<Place> find_part(std::size_t kept) {
    const std::size_t size = text_.view().size() - std::min(text_.view().size(), kept);
    if (!format_.cut || size < std::max(kLongestPart, 2 * searched_)) return std::nullopt;
    const std::size_t cut = format_.cut(text_.view().substr(0, size));
    searched_ = cut == 0 ? size : 0;  // twice as much is looked at next
    if (cut == 0) return std::nullopt;
    return Place{0, cut, cut, true};
  }

  std::optional<Place> find_all() {
    while (text_.more()) {
      if (const auto part = find_part(0)) return part;
    }
    searched_ = 0;
    const std::size_t size = text_.view().size();
    if (size == 0) return std::nullopt;
    return Place{0, size, size};
  }

  std::optional<Place> find_delimited() {
    std::size_t searched = 0;
    while (true) {
      const std::string_view view = text_.view();
      const std::size_t found = view.find(format_.delimiter, searched);
      if (found != std::string_view::npos) {
        return Place{0, found, found + format_.delimiter.size()};
      }
      const std::size_t begun = format_.delimiter.size() - 1;  // of a delimiter, may be in view
      searched = view.size() - std::min(view.size(), begun);
      if (const auto part = find_part(begun)) return part;
      if (!text_.more()) break;
    }
    return find_all();
  }

  /// From the first line that is not blank to the last before the next blank one.
  std::optional<Place> find_paragraph() {
    std::size_t at = 0, begin = 0, end = 0;
    while (const auto line = line_at(at)) {
      const bool is_blank = trim(text_.view().substr(at, line->size)).empty();
      if (is_blank && end > begin) return Place{begin, end - begin, line->next};
      if (is_blank) {
        begin = end = line->next;
      } else {
        end = at + line->size;
      }
      at = line->next;
    }
    if (text_.view().empty()) return std::nullopt;
    return Place{begin, end - begin, text_.view().size()};
  }

  /// The line that begins at `at` of the view, without its line break.
  std::optional<Place> line_at(std::size_t at) {
    std::size_t searched = at;
    while (true) {
      const std::string_view view = text_.view();
      const std::size_t found = view.find('\n', searched);
      if (found != std::string_view::npos) {
        const bool has_return = found > at && view[found - 1] == '\r';
        return Place{at, found - at - (has_return ? 1 : 0), found + 1};
      }
      searched = view.size();
      if (!text_.more()) break;
    }
    const std::size_t size = text_.view().size();
    if (at >= size) return std::nullopt;
    return Place{at, size - at, size};
  }

  std::int64_t lines_in(std::size_t end) const {
    const std::string_view view = text_.view().substr(0, end);
    return std::count(view.begin(), view.end(), '\n');
  }

  const DocumentFormat format_;
  LookAhead text_;
  std::int64_t line_ = 1;
  bool is_open_ = false;      // a part of a document was given, and not its end
  std::size_t searched_ = 0;  // bytes of the view in which there is no cut
};

}  // namespace

std::unique_ptr<RecordReader> read_plain_text(const InputFile& file, const DocumentFormat& format) {
  return std::make_unique<PlainText>(file, format);
}

}  // namespace heddle
