#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "data/formats/flatbuffer.h"
#include "data/formats/unpack_block.h"

namespace heddle::arrow {

/// Types by how their values lie in memory.
enum class Layout {
  null,
  flags,
  integer,
  real,
  opaque,      ///< of fixed width, and neither text nor a number of JSON
  text,        ///< offsets of 4 bytes
  large_text,  ///< of 8
  text_view,   ///< short ones in place, others in buffers of their own
  list,
  large_list,
  fixed_list,
  structure,
};

/// A column, or what is below one.
struct Field {
  std::string name;
  Layout layout = Layout::null;
  int width = 0;  ///< bytes of a value of fixed width; elements of a fixed list
  bool is_signed = true;
  bool has_dictionary = false;  ///< values are places in the dictionary `dictionary`
  std::int64_t dictionary = 0;
  int place_width = 0;  ///< bytes of such a place
  bool is_place_signed = true;
  std::vector<Field> children = {};
};

/// Reads the fields of a schema. Types that cannot be read are refused by number with Error(data).
std::vector<Field> read_fields(const FlatTable& schema, const std::string& name);

/// The values of one field in one batch. Buffers are as long as they are: every access checks.
struct Array {
  const Field* field = nullptr;
  std::int64_t length = 0;
  std::string validity = {}, offsets = {}, values = {};
  std::vector<std::string> more = {};  ///< further buffers, of text_view
  std::vector<Array> children = {};
};
using Dictionaries = std::map<std::int64_t, std::vector<Array>>;

/// Takes arrays out of the body of a batch, in the order of the schema.
class BatchReader {
 public:
  /// `batch` describes what lies at [at, at + size) of the file.
  BatchReader(const FileBytes& file, const std::string& name, const FlatTable& batch,
              std::uint64_t at, std::uint64_t size);

  std::int64_t rows() const { return rows_; }
  /// The array of the next field. Without `is_wanted` its buffers are passed over.
  Array take(const Field& field, bool is_wanted);
  /// The values of a dictionary whose places `field` has.
  Array take_dictionary(const Field& field);

 private:
  Array take_as(const Field& field, bool is_dictionary, bool is_wanted);
  std::string buffer(bool is_wanted);
  [[noreturn]] void refuse(const std::string& why) const;

  const FileBytes& file_;
  const std::string& name_;
  const FlatTable batch_;
  const std::uint64_t at_, size_;
  std::int64_t rows_ = 0;
  BlockPacking packing_ = BlockPacking::none;
  std::uint64_t nodes_ = 0, buffers_ = 0, more_ = 0;  // how many there are
  std::uint64_t next_node_ = 0, next_buffer_ = 0, next_more_ = 0;
};

/// Value `index` of an array as JSON. Throws Error(data) when buffers are too short for it.
Json value_at(const Array& array, std::int64_t index, const Dictionaries& dictionaries,
              const std::string& name);

}  // namespace heddle::arrow
