#include "data/input_blocks.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace heddle {
namespace {

constexpr std::size_t kSmallestBlock = std::size_t{256} << 10;
constexpr std::size_t kLargestBlock = std::size_t{16} << 20;
constexpr std::size_t kBlocksWanted = 64;
constexpr std::size_t kBlockOfUnknown = std::size_t{4} << 20;
/// What a record takes in memory beside its content, so that very short ones do not add up.
constexpr std::size_t kRecordOverhead = 64;

}  // namespace

std::size_t block_bytes_for(const std::vector<InputFile>& files) {
  std::size_t total = 0;
  for (const InputFile& file : files) {
    if (file.is_standard_input()) return kBlockOfUnknown;
    total += file.size_bytes;
  }
  return std::clamp(total / kBlocksWanted, kSmallestBlock, kLargestBlock);
}

std::vector<std::vector<InputFile>> group_inputs(const std::vector<InputFile>& files,
                                                 std::size_t block_bytes) {
  std::vector<std::vector<InputFile>> groups;
  std::size_t room = 0;
  for (const InputFile& file : files) {
    if (room == 0) {
      groups.emplace_back();
      room = block_bytes;
    }
    groups.back().push_back(file);
    room -= std::min(room, file.size_bytes);
  }
  return groups;
}

InputBlock BlockReader::next() {
  InputBlock block;
  try {
    fill(block);
  } catch (...) {
    block.damage = std::current_exception();
    file_ = files_.size();
    reader_.reset();
  }
  return block;
}

void BlockReader::fill(InputBlock& block) {
  std::size_t bytes = 0;
  while (bytes < block_bytes_ && file_ < files_.size()) {
    if (!reader_) reader_ = open_records(files_[file_], format_);
    Record record;
    if (!reader_->next(record)) {
      block.file_bytes += reader_->position() - std::exchange(position_, 0);
      finish_file();
      continue;
    }
    bytes += record.content.size() + record.tokens.size() * sizeof(std::int32_t) + kRecordOverhead;
    block.records.push_back({std::move(record), &files_[file_]});
  }
  if (!reader_) return;
  block.file_bytes += reader_->position() - position_;
  position_ = reader_->position();
}

void BlockReader::finish_file() {
  const InputFile& file = files_[file_];
  const std::uint64_t read = reader_->position();
  reader_.reset();
  ++file_;
  if (file.is_standard_input() || read == file.size_bytes) return;
  throw Error(ErrorCode::data, fmt::format("{} changed while it was read", file.path.string()),
              "run the command again when it is complete");
}

}  // namespace heddle
