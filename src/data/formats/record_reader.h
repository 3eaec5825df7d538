#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "data/formats/inputs.h"

namespace heddle {

enum class TextSplit {
  whole_file,   ///< a file is a document
  blank_lines,  ///< paragraphs are documents, without the line breaks around them
  delimiter,    ///< documents stand between delimiters, which belong to none
};

/// What records are wanted of files.
struct DocumentFormat {
  /// Of objects and tables, the field whose text is wanted. Empty: all fields, as JSON objects.
  std::string field = "text";
  TextSplit split = TextSplit::whole_file;
  std::string delimiter = {};  ///< for TextSplit::delimiter; not empty
  /// The token that ends documents in files of bare tokens; absent when it is not known.
  std::optional<std::int32_t> end_token = {};
  /// The last place where the beginning of a text may be cut, 0 for none: long documents of text
  /// files are read in parts. Absent: documents are whole.
  std::function<std::size_t(std::string_view)> cut = {};
};

/// A document, or an example: what the formats have in common. It is taken out of its file here and
/// understood later (record_text, record_object), which may be done by many threads.
struct Record {
  enum class Form {
    text,    ///< `content` is the text asked for
    json,    ///< `content` is JSON, of which nothing but its end is known
    tokens,  ///< `tokens` were made by somebody else
  };
  Form form = Form::text;
  std::string content = {};
  std::vector<std::int32_t> tokens = {};
  std::int64_t number = 0;  ///< its first line, or its row, from 1; for place_of
  std::string fault = {};   ///< what is wrong with this record alone; empty when nothing is known
  /// It is a part of a document, behind which, or before which, the records beside it have others.
  bool continues = false, goes_on = false;
};

/// Reads the records of one file in order, in memory that does not grow with the file. next()
/// throws Error(data), which names the file, its format and the place, when it is damaged.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  /// False at the end, when `record` is left as it is.
  virtual bool next(Record& record) = 0;
  /// Bytes of the file that were read so far.
  virtual std::uint64_t position() const = 0;
};

std::unique_ptr<RecordReader> open_records(const InputFile& file, const DocumentFormat& format);

/// The text of a record of `file`, which is valid UTF-8, or an Error(data) that names its place.
Result<std::string> record_text(Record record, const InputFile& file, const std::string& field);

/// All fields of a record that was read with an empty `field`: a JSON object. Throws Error(data)
/// that names its place.
Json record_object(const Record& record, const InputFile& file);

/// Calls `take` with each object of the files, one after another, and where it stands ("FILE:12").
/// `on_read`, which may be absent, hears before each how many bytes of all files have been read.
/// Throws Error(data) for what is no object.
void for_each_object(const std::vector<InputFile>& files,
                     const std::function<void(const Json& object, const std::string& place)>& take,
                     const std::function<void(std::uint64_t bytes)>& on_read = {});

}  // namespace heddle
