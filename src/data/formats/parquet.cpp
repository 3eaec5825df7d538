#include "base/json.h"
#include "data/formats/parquet_column.h"
#include "data/formats/readers.h"

namespace heddle {
namespace parquet {
namespace {

/// Puts the rows of a table together again from its columns. Lists become lists and groups objects;
/// what is neither text nor a number becomes null.
class Parquet : public RecordReader {
 public:
  Parquet(const InputFile& file, const std::string& field)
      : file_(file),
        name_(file.path.string()),
        bytes_(file.path),
        footer_(read_footer(bytes_, name_)),
        has_field_(!field.empty()) {
    if (has_field_) choose(field);
    columns_.resize(footer_.columns);
  }

  bool next(Record& record) override {
    while (rows_left_ == 0) {
      if (group_ == footer_.groups.size()) return false;
      begin_group();
    }
    --rows_left_;
    ++row_;
    record = has_field_ ? text_record() : row_record(object(footer_.schema), row_);
    if (rows_left_ == 0) end_group();
    return true;
  }

  std::uint64_t position() const override {
    if (rows_left_ == 0 && group_ == footer_.groups.size()) return bytes_.size();
    const double groups = static_cast<double>(footer_.groups.size());
    return static_cast<std::uint64_t>(static_cast<double>(group_) / groups *
                                      static_cast<double>(bytes_.size()));
  }

 private:
  /// Leaves only the column of the field in the schema.
  void choose(const std::string& field) {
    std::vector<std::string> names;
    for (const Node& node : footer_.schema.children) {
      names.push_back(node.name);
      if (node.name != field) continue;
      if (node.physical != Physical::bytes || node.repetition == Repetition::repeated) {
        throw Error(ErrorCode::data,
                    fmt::format("{}: column \"{}\" does not hold texts", name_, field),
                    "choose another with --field or data.field");
      }
      footer_.schema.children = {Node(node)};
      return;
    }
    refuse_column(file_, field, names);
  }

  void begin_group() {
    rows_left_ = footer_.groups[group_].rows;
    for (const Node& node : footer_.schema.children) open(node);
    ++group_;
  }
  void open(const Node& node) {
    for (const Node& child : node.children) open(child);
    if (!node.physical) return;
    const Chunk& chunk = footer_.groups[group_].chunks[node.column];
    columns_[node.column] = std::make_unique<Column>(bytes_, name_, node, chunk);
  }
  void end_group() {
    for (auto& column : columns_) {
      if (column && column->has_entry()) refuse("a column has more rows than its group");
      column.reset();
    }
  }
  [[noreturn]] void refuse(const std::string& why) const {
    refuse_damaged(name_, "Parquet file", fmt::format("row {}: {}", row_, why));
  }

  /// The column below a node that tells what is there: its first.
  Column& first(const Node& node) {
    Column& column = *columns_[node.column];
    if (!column.has_entry()) refuse("a column has fewer rows than its group");
    return column;
  }

  Record text_record() {
    const Node& node = footer_.schema.children.front();
    Column& column = first(node);
    Record record{.number = row_};
    if (column.definition() == node.definition) {
      const Value value = column.take_value();
      record.content = std::get<std::string_view>(value);
    } else {
      record.fault = fmt::format("field \"{}\" is null", node.name);
    }
    column.advance();
    return record;
  }

  Json object(const Node& group) {
    Json object = Json::object();
    for (const Node& node : group.children) object[node.name] = value(node);
    return object;
  }

  /// The value of a node for which its parent is there.
  Json value(const Node& node) {
    if (first(node).definition() < node.definition && node.repetition != Repetition::required) {
      pass(node);
      return node.repetition == Repetition::repeated ? Json::array() : Json();
    }
    if (node.repetition != Repetition::repeated) return present(node);
    Json list = Json::array();
    do {
      list.push_back(present(node));
    } while (columns_[node.column]->has_entry() &&
             columns_[node.column]->repeated() == node.repeated);
    return list;
  }

  /// The value of a node that is there.
  Json present(const Node& node) {
    if (node.physical) return column_value(node);
    // A list is a group around something repeated, which in turn is a group around the element.
    const bool is_list = node.is_list && node.children.size() == 1 &&
                         node.children.front().repetition == Repetition::repeated;
    if (!is_list) return object(node);
    const Node& repeated = node.children.front();
    Json list = value(repeated);
    if (repeated.physical || repeated.children.size() != 1) return list;
    const std::string& inner = repeated.children.front().name;
    for (Json& element : list) element = Json(std::move(element[inner]));
    return list;
  }

  Json column_value(const Node& node) {
    Column& column = first(node);
    const Value value = column.take_value();
    Json json;
    if (const auto* flag = std::get_if<bool>(&value)) json = *flag;
    if (const auto* number = std::get_if<std::int64_t>(&value)) json = *number;
    if (const auto* real = std::get_if<double>(&value)) json = *real;
    if (const auto* text = std::get_if<std::string_view>(&value)) json = *text;
    column.advance();
    return json;
  }

  /// Nothing is there: every column below has one entry that says so.
  void pass(const Node& node) {
    for (const Node& child : node.children) pass(child);
    if (node.physical) first(node).advance();
  }

  const InputFile file_;
  const std::string name_;
  const FileBytes bytes_;
  Footer footer_;
  const bool has_field_;
  std::vector<std::unique_ptr<Column>> columns_;  // of the group that is read
  std::size_t group_ = 0;                         // to be begun next
  std::int64_t rows_left_ = 0, row_ = 0;
};

}  // namespace
}  // namespace parquet

std::unique_ptr<RecordReader> read_parquet(const InputFile& file, const std::string& field) {
  return std::make_unique<parquet::Parquet>(file, field);
}

}  // namespace heddle
