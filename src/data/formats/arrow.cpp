#include <optional>

#include "base/json.h"
#include "data/formats/arrow_array.h"
#include "data/formats/byte_stream.h"
#include "data/formats/readers.h"

namespace heddle {
namespace arrow {
namespace {

constexpr std::uint32_t kContinued = 0xFFFFFFFF;
constexpr std::string_view kArrowMagic = "ARROW1";

/// A message: what it says, and where its body lies.
struct ArrowMessage {
  std::string metadata;
  std::uint64_t body_at = 0, body_size = 0;
};
enum MessageType { kSchema = 1, kDictionaryBatch = 2, kRecordBatch = 3 };

/// Rows of an Arrow stream, or of a file, which is a stream between two words, with an index that
/// is not needed to read it in order. In memory are the wanted columns of one batch.
class Arrow : public RecordReader {
 public:
  Arrow(const InputFile& file, const std::string& field)
      : file_(file), name_(file.path.string()), bytes_(file.path), field_(field) {
    find_stream();
    std::optional<ArrowMessage> message = read_message();
    if (!message || type_of(*message) != kSchema) refuse("it does not begin with a schema");
    read_schema(root_of(*message).table(2));
  }

  bool next(Record& record) override {
    while (row_ == rows_) {
      std::optional<ArrowMessage> message = read_message();
      if (!message) {
        at_ = bytes_.size();
        return false;
      }
      const int type = type_of(*message);
      if (type == kDictionaryBatch) read_dictionary(*message);
      if (type == kRecordBatch) read_batch(*message);
    }
    record = field_.empty() ? row_record(object(), ++count_) : text_record(++count_);
    ++row_;
    return true;
  }

  std::uint64_t position() const override { return at_; }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    refuse_damaged(name_, "Arrow file", why);
  }

  void find_stream() {
    end_ = bytes_.size();
    if (end_ < kArrowMagic.size() + 2 || bytes_.read(0, kArrowMagic.size()) != kArrowMagic) return;
    at_ = 8;
    if (bytes_.read(end_ - kArrowMagic.size(), kArrowMagic.size()) != kArrowMagic || end_ < 18) {
      refuse("its end is missing");
    }
  }

  /// Absent at the end.
  std::optional<ArrowMessage> read_message() {
    if (end_ - at_ < 4) return std::nullopt;
    auto size = load<std::uint32_t>();
    if (size == kContinued) {
      if (end_ - at_ < 4) refuse("it ends within a message");
      size = load<std::uint32_t>();
    }
    if (size == 0) return std::nullopt;
    if (size > end_ - at_) refuse("it ends within a message");
    ArrowMessage message{.metadata = bytes_.read(at_, size)};
    at_ += size;
    const auto body = root_of(message).number<std::int64_t>(3, 0);
    if (body < 0 || static_cast<std::uint64_t>(body) > end_ - at_) {
      refuse("it ends within the body of a message");
    }
    message.body_at = at_;
    message.body_size = static_cast<std::uint64_t>(body);
    at_ += message.body_size;
    return message;
  }
  template <class T>
  T load() {
    T value;
    bytes_.read_into(at_, {reinterpret_cast<char*>(&value), sizeof value});
    at_ += sizeof value;
    return value;
  }
  FlatTable root_of(const ArrowMessage& message) const {
    return FlatTable::root(message.metadata, name_);
  }
  int type_of(const ArrowMessage& message) const {
    return root_of(message).number<std::uint8_t>(1, 0);
  }

  void read_schema(const FlatTable& schema) {
    if (schema.number<std::int16_t>(0, 0) != 0) {
      throw Error(ErrorCode::data,
                  fmt::format("{} holds big-endian numbers, which are not read", name_),
                  "write it again on another machine");
    }
    fields_ = read_fields(schema, name_);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      names.push_back(fields_[i].name);
      if (names.back() == field_) wanted_ = i;
    }
    if (field_.empty()) return;
    if (!wanted_) refuse_column(file_, field_, names);
    const Layout layout = fields_[*wanted_].layout;
    if (layout == Layout::text || layout == Layout::large_text || layout == Layout::text_view) {
      return;
    }
    throw Error(ErrorCode::data,
                fmt::format("{}: column \"{}\" does not hold texts", name_, field_),
                "choose another with --field or data.field");
  }

  /// The field, anywhere below `fields`, that has the dictionary.
  const Field* field_of(std::int64_t dictionary, const std::vector<Field>& fields) const {
    for (const Field& field : fields) {
      if (field.has_dictionary && field.dictionary == dictionary) return &field;
      if (const Field* below = field_of(dictionary, field.children)) return below;
    }
    return nullptr;
  }

  void read_dictionary(const ArrowMessage& message) {
    const FlatTable header = root_of(message).table(2);
    const auto id = header.number<std::int64_t>(0, 0);
    const Field* field = field_of(id, fields_);
    if (field == nullptr) refuse(fmt::format("dictionary {} belongs to no column", id));
    BatchReader batch(bytes_, name_, header.table(1), message.body_at, message.body_size);
    if (header.number<std::uint8_t>(2, 0) == 0) dictionaries_[id].clear();
    dictionaries_[id].push_back(batch.take_dictionary(*field));
  }

  void read_batch(const ArrowMessage& message) {
    BatchReader batch(bytes_, name_, root_of(message).table(2), message.body_at, message.body_size);
    columns_.clear();
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      const bool is_wanted = !wanted_ || *wanted_ == i;
      Array array = batch.take(fields_[i], is_wanted);
      if (array.length != batch.rows()) refuse("a column is shorter than its batch");
      if (is_wanted) columns_.push_back(std::move(array));
    }
    rows_ = batch.rows();
    row_ = 0;
  }

  Json object() const {
    Json object = Json::object();
    for (const Array& column : columns_) {
      object[column.field->name] = value_at(column, row_, dictionaries_, name_);
    }
    return object;
  }

  Record text_record(std::int64_t number) const {
    Json value = value_at(columns_.front(), row_, dictionaries_, name_);
    Record record{.number = number};
    if (value.is_string()) {
      record.content = std::move(value.get_ref<std::string&>());
    } else {
      record.fault = fmt::format("field \"{}\" is null", field_);
    }
    return record;
  }

  const InputFile file_;
  const std::string name_;
  const FileBytes bytes_;
  const std::string field_;
  std::uint64_t at_ = 0, end_ = 0;
  std::vector<Field> fields_;
  std::optional<std::size_t> wanted_;  // absent: all
  Dictionaries dictionaries_;
  std::vector<Array> columns_;  // of the batch
  std::int64_t row_ = 0, rows_ = 0, count_ = 0;
};

}  // namespace
}  // namespace arrow

std::unique_ptr<RecordReader> read_arrow(const InputFile& file, const std::string& field) {
  return std::make_unique<arrow::Arrow>(file, field);
}

}  // namespace heddle
