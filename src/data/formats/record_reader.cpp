#include "data/formats/record_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/json.h"
#include "base/strings.h"
#include "data/formats/json_field.h"
#include "data/formats/readers.h"

namespace heddle {
namespace {

constexpr const char* kFaultHint =
    "correct it, or leave such documents out with `heddle tokenize --on-error skip`";

Error fault_at(const InputFile& file, std::int64_t number, const std::string& what,
               const std::string& hint = kFaultHint) {
  return Error(ErrorCode::data, fmt::format("{}: {}", place_of(file, number), what), hint);
}

/// The fault of a record whose bytes are no UTF-8; by its line where the file has lines.
std::optional<Error> utf8_fault(const Record& record, const InputFile& file) {
  const std::string_view bytes = record.content;
  const std::size_t valid = valid_utf8_prefix(bytes);
  if (valid == bytes.size()) return std::nullopt;
  const auto before = bytes.substr(0, valid);
  const bool has_lines = file.kind == InputKind::text || file.kind == InputKind::json;
  const auto lines = has_lines ? std::count(before.begin(), before.end(), '\n') : 0;
  return fault_at(
      file, record.number + lines,
      fmt::format("invalid UTF-8 (byte 0x{:02x})", static_cast<unsigned char>(bytes[valid])));
}

}  // namespace

std::unique_ptr<RecordReader> open_records(const InputFile& file, const DocumentFormat& format) {
  switch (file.kind) {
    case InputKind::text: return read_plain_text(file, format);
    case InputKind::jsonl: return read_json_lines(file);
    case InputKind::json: return read_json_values(file);
    case InputKind::csv:
    case InputKind::tsv: return read_csv(file, format.field);
    case InputKind::parquet: return read_parquet(file, format.field);
    case InputKind::arrow: return read_arrow(file, format.field);
    case InputKind::nanogpt: return read_nanogpt(file, format.end_token);
    case InputKind::megatron: return read_megatron(file);
  }
  HEDDLE_CHECK(false, "kind {} of {}", static_cast<int>(file.kind), file.path.string());
  return nullptr;
}

Record row_record(const Json& object, std::int64_t number) {
  Record record{.form = Record::Form::json, .number = number};
  try {
    record.content = object.dump();
  } catch (const Json::type_error&) {
    record.fault = "invalid UTF-8";
  }
  return record;
}

void refuse_column(const InputFile& file, const std::string& field,
                   const std::vector<std::string>& columns) {
  throw Error(ErrorCode::data,
              fmt::format("{} has no column \"{}\"; it has {}", file.path.string(), field,
                          fmt::join(columns, ", ")),
              "choose one with --field or data.field");
}

Result<std::string> record_text(Record record, const InputFile& file, const std::string& field) {
  HEDDLE_CHECK(record.form != Record::Form::tokens, "tokens have no text");
  if (!record.fault.empty()) return fault_at(file, record.number, record.fault);
  if (auto fault = utf8_fault(record, file)) return *std::move(fault);
  if (record.form == Record::Form::text) return std::move(record.content);
  Result<std::string> text = json_field(record.content, field);
  if (text) return text;
  const Error& error = text.error();
  return fault_at(file, record.number, error.message(),
                  error.hint().empty() ? kFaultHint : error.hint());
}

Json record_object(const Record& record, const InputFile& file) {
  constexpr const char* kHint = "correct it, or leave it out";
  if (!record.fault.empty()) throw fault_at(file, record.number, record.fault, kHint);
  if (record.form != Record::Form::json) {
    throw Error(ErrorCode::data,
                fmt::format("{} holds {}, not objects with fields", file.path.string(),
                            record.form == Record::Form::text ? "text" : "tokens"),
                "give JSON lines, JSON, CSV, Parquet or Arrow");
  }
  if (const auto fault = utf8_fault(record, file))
    throw Error(fault->code(), fault->message(), kHint);
  Json object = parse_json(record.content, place_of(file, record.number));
  if (!object.is_object()) throw fault_at(file, record.number, "not a JSON object", kHint);
  return object;
}

void for_each_object(const std::vector<InputFile>& files,
                     const std::function<void(const Json& object, const std::string& place)>& take,
                     const std::function<void(std::uint64_t bytes)>& on_read) {
  std::uint64_t before = 0;
  for (const InputFile& file : files) {
    const auto reader = open_records(file, {.field = ""});
    for (Record record; reader->next(record);) {
      if (on_read) on_read(before + reader->position());
      take(record_object(record, file), place_of(file, record.number));
    }
    before += file.size_bytes;
  }
}

}  // namespace heddle
