#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "data/formats/record_reader.h"

namespace heddle {

/// Where a block lies: blocks of all groups, one after another, are all records in input order.
struct BlockPlace {
  std::size_t group = 0, block = 0;
  friend auto operator<=>(const BlockPlace&, const BlockPlace&) = default;
};

struct BlockRecord {
  Record record;
  const InputFile* file = nullptr;  ///< of the group
};

/// What one thread works on at a time.
struct InputBlock {
  std::vector<BlockRecord> records;
  std::size_t file_bytes = 0;  ///< read for it
  /// What ended the reading behind the records; nothing follows then.
  std::exception_ptr damage;
};

/// How large blocks of these files should be: enough of them to occupy every core, and not so many
/// that a terabyte makes a million files. A function of the files alone.
std::size_t block_bytes_for(const std::vector<InputFile>& files);

/// Cuts the list where it reaches `block_bytes`: a large file is a group of its own, small ones
/// share one.
std::vector<std::vector<InputFile>> group_inputs(const std::vector<InputFile>& files,
                                                 std::size_t block_bytes);

/// Cuts the records of a group into blocks, which depend on the content alone. Not thread-safe.
class BlockReader {
 public:
  BlockReader(std::vector<InputFile> files, const DocumentFormat& format, std::size_t block_bytes)
      : files_(std::move(files)), format_(format), block_bytes_(block_bytes) {}

  /// The next block, empty when there is nothing left. Faults that keep a file from being read are
  /// in it; also that a file has another size than when it was found.
  InputBlock next();

 private:
  void fill(InputBlock& block);
  /// The file of the current reader was read to its end.
  void finish_file();

  const std::vector<InputFile> files_;
  const DocumentFormat format_;
  const std::size_t block_bytes_;
  std::size_t file_ = 0;  // the one being read
  std::unique_ptr<RecordReader> reader_;
  std::uint64_t position_ = 0;  // of reader_, when the last block ended
};

}  // namespace heddle
