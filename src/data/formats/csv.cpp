#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "data/formats/byte_stream.h"
#include "data/formats/readers.h"

namespace heddle {
namespace {

/// Rows of a table as RFC 4180 has it: cells may stand in quotes, which may hold line breaks,
/// separators and, doubled, quotes. A quote inside a cell that does not begin with one is a
/// character like others. The first row names the columns.
class Csv : public RecordReader {
 public:
  Csv(const InputFile& file, char separator, const std::string& field)
      : file_(file), separator_(separator), field_(field), text_(open_bytes(file)) {
    if (!read_row(columns_)) {
      throw Error(ErrorCode::data, fmt::format("{} is an empty table", file.path.string()),
                  "its first row must name its columns");
    }
    if (field.empty()) return;
    const auto found = std::find(columns_.begin(), columns_.end(), field);
    wanted_ = static_cast<std::size_t>(found - columns_.begin());
    if (found == columns_.end()) {
      refuse_column(file, field, columns_);
    }
  }

  bool next(Record& record) override {
    const std::int64_t line = line_;
    if (!read_row(cells_)) return false;
    record = {.number = line};
    if (cells_.size() != columns_.size()) {
      record.fault =
          fmt::format("{} cells in a table of {} columns", cells_.size(), columns_.size());
    } else if (!field_.empty()) {
      record.content = std::move(cells_[wanted_]);
    } else {
      Json object = Json::object();
      for (std::size_t i = 0; i < cells_.size(); ++i) object[columns_[i]] = std::move(cells_[i]);
      record = row_record(object, line);
    }
    return true;
  }

  std::uint64_t position() const override { return text_.position(); }

 private:
  /// The next row that is not an empty line; false at the end.
  bool read_row(std::vector<std::string>& cells) {
    while (!text_.view().empty() || text_.more()) {
      cells.clear();
      do {
        cells.emplace_back();
      } while (read_cell(cells.back()));
      if (cells.size() > 1 || !cells.front().empty() || is_quoted_) return true;
    }
    return false;
  }

  /// Whether another cell follows in the row.
  bool read_cell(std::string& cell) {
    is_quoted_ = peek() == '"';
    if (is_quoted_) take_quoted(cell);
    const std::size_t quoted = cell.size();
    const std::array<char, 2> ends = {separator_, '\n'};
    take_until(cell, std::string_view(ends.data(), ends.size()));
    const int end = peek();
    if (end < 0) return false;
    text_.take(1);
    if (end == separator_) return true;
    ++line_;
    if (cell.size() > quoted && cell.ends_with('\r')) cell.pop_back();
    return false;
  }

  /// A cell in quotes, of which two in a row are one of its text.
  void take_quoted(std::string& cell) {
    const std::int64_t line = line_;
    while (true) {
      text_.take(1);
      take_until(cell, "\"");
      if (peek() < 0) {
        throw Error(ErrorCode::data,
                    fmt::format("{}: a quote that begins here has no end", place_of(file_, line)),
                    "correct it, or get the whole file");
      }
      text_.take(1);
      if (peek() != '"') return;
      cell += '"';
    }
  }

  /// Appends what comes before any of `ends` to the cell.
  void take_until(std::string& cell, std::string_view ends) {
    while (true) {
      const std::string_view view = text_.view();
      const std::size_t found = std::min(view.find_first_of(ends), view.size());
      cell.append(view.substr(0, found));
      if (ends.size() == 1) line_ += std::count(view.begin(), view.begin() + found, '\n');
      text_.take(found);
      require_record_fits(cell.size(), file_, line_);
      if (found < view.size() || !text_.more()) return;
    }
  }

  /// The next character; -1 at the end.
  int peek() {
    if (text_.view().empty() && !text_.more()) return -1;
    return static_cast<unsigned char>(text_.view().front());
  }

  const InputFile file_;
  const char separator_;
  const std::string field_;
  LookAhead text_;
  std::vector<std::string> columns_, cells_;
  std::size_t wanted_ = 0;
  std::int64_t line_ = 1;
  bool is_quoted_ = false;  // the last cell
};

}  // namespace

std::unique_ptr<RecordReader> read_csv(const InputFile& file, const std::string& field) {
  return std::make_unique<Csv>(file, file.kind == InputKind::csv ? ',' : '\t', field);
}

}  // namespace heddle
