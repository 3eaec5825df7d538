#pragma once

// The readers of single formats, for open_records.

#include <memory>

#include "data/formats/record_reader.h"

namespace heddle {

std::unique_ptr<RecordReader> read_plain_text(const InputFile& file, const DocumentFormat& format);
std::unique_ptr<RecordReader> read_json_lines(const InputFile& file);
std::unique_ptr<RecordReader> read_json_values(const InputFile& file);
std::unique_ptr<RecordReader> read_csv(const InputFile& file, const std::string& field);
std::unique_ptr<RecordReader> read_parquet(const InputFile& file, const std::string& field);
std::unique_ptr<RecordReader> read_arrow(const InputFile& file, const std::string& field);
std::unique_ptr<RecordReader> read_nanogpt(const InputFile& file,
                                           std::optional<std::int32_t> end_token);
std::unique_ptr<RecordReader> read_megatron(const InputFile& file);

/// A row of a table as a record: the object's text, or the fault that some of it is no UTF-8.
Record row_record(const Json& object, std::int64_t number);
/// Throws the Error(data) for a table without the column asked for.
[[noreturn]] void refuse_column(const InputFile& file, const std::string& field,
                                const std::vector<std::string>& columns);

}  // namespace heddle
