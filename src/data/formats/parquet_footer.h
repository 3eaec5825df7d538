#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/formats/file_bytes.h"
#include "data/formats/thrift.h"
#include "data/formats/unpack_block.h"

namespace heddle::parquet {

/// How values of a column are stored.
enum class Physical { boolean, int32, int64, int96, real32, real64, bytes, fixed };
enum class Repetition { required, optional, repeated };

/// An element of the schema: a column, or a group of them.
struct Node {
  std::string name;
  Repetition repetition = Repetition::required;
  std::optional<Physical> physical;  ///< of a column; absent: a group
  bool is_list = false;              ///< a group that stands for a list
  std::vector<Node> children;
  /// Levels of what is there: how many optional and repeated elements, and how many repeated ones,
  /// lie on the way to it, itself included.
  int definition = 0, repeated = 0;
  std::size_t column = 0;  ///< of a column, its number; of a group, that of its first
};

struct Chunk {
  Physical physical = Physical::bytes;
  std::optional<BlockPacking> packing;  ///< absent: one that is not read
  int codec = 0;                        ///< its number, for messages
  std::uint64_t begin = 0, size = 0;    ///< bytes of its pages in the file
  std::int64_t values = 0;
};

struct RowGroup {
  std::int64_t rows = 0;
  std::vector<Chunk> chunks;  ///< by column
};

struct Footer {
  Node schema;  ///< a group of the table's columns
  std::size_t columns = 0;
  std::vector<RowGroup> groups;
};

/// Reads what stands at the end of a Parquet file. Everything in it that lies outside of the file
/// or contradicts itself is an Error(data), so that who reads pages need not ask again.
Footer read_footer(const FileBytes& file, const std::string& name);

}  // namespace heddle::parquet
