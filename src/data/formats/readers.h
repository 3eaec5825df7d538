#pragma once

// The readers of single formats, for open_records.

#include <memory>

#include "data/formats/record_reader.h"

namespace heddle {

std::unique_ptr<RecordReader> read_plain_text(const InputFile& file, const DocumentFormat& format);
std::unique_ptr<RecordReader> read_json_lines(const InputFile& file);
std::unique_ptr<RecordReader> read_json_values(const InputFile& file);

}  // namespace heddle
