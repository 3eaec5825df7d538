#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "data/input_blocks.h"
#include "data/tokenize_parts.h"

namespace heddle {

/// What a block becomes, in the folder of a job.
std::filesystem::path part_path(const std::filesystem::path& folder, BlockPlace place,
                                const char* extension);
/// Says how many blocks a group has, once it was read to its end.
std::filesystem::path group_end_path(const std::filesystem::path& folder, std::size_t group);

/// The blocks of one call, read and encoded by several threads into the files of a folder: of a
/// block first its token file, then its record; of a group its end.
class TokenizeJob {
 public:
  TokenizeJob(FileSystem& files, TokenizeOptions options, std::function<EncodeText()> make_encoder,
              const std::vector<InputFile>& inputs, std::filesystem::path folder);
  ~TokenizeJob();

  /// Does what is missing. Throws the first fault in input order.
  void run(const std::function<void(const TokenizeProgress&)>& progress);
  /// Makes run() return soon, with work left undone. May be called by any thread.
  void stop() { is_stopped_ = true; }
  bool is_stopped() const { return is_stopped_; }

  TokenizeResult result() const;
  std::vector<TokenFilePart> token_files() const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  struct Group;
  void work();
  bool comes_before_faults(BlockPlace place);
  bool take_block(BlockPlace& place, InputBlock& block);
  bool read_block(Group& group, std::size_t index, BlockPlace& place, InputBlock& block);
  void finish(BlockPlace place, InputBlock& block, const EncodeText& encode);
  TokenizeRecord encode_block(BlockPlace place, InputBlock& block, const EncodeText& encode);
  std::optional<Error> append_tokens(BlockRecord& one, const EncodeText& encode,
                                     std::vector<std::int32_t>& tokens) const;

  FileSystem& files_;
  const TokenizeOptions options_;
  const std::function<EncodeText()> make_encoder_;
  const std::filesystem::path folder_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::size_t total_bytes_ = 0;

  std::atomic<bool> is_stopped_ = false;
  std::atomic<std::size_t> done_bytes_ = 0, reused_bytes_ = 0;
  std::atomic<std::int64_t> reused_parts_ = 0;

  std::mutex mutex_;  // of what follows
  std::condition_variable finished_;
  int running_;
  std::map<BlockPlace, TokenizeRecord> records_;
  BlockPlace first_failed_ = {~std::size_t{0}, ~std::size_t{0}};
  std::exception_ptr failure_;
};

}  // namespace heddle
