#include "data/tokenize.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "data/input_blocks.h"
#include "data/tokenize_parts.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

/// The blocks of one call, read and encoded by several threads.
class Job {
 public:
  Job(FileSystem& files, const TokenizeOptions& options,
      const std::function<EncodeText()>& make_encoder, const std::vector<InputFile>& inputs)
      : files_(files),
        options_(options),
        make_encoder_(make_encoder),
        folder_(options.out.string() + ".parts"),
        running_(std::max(1, options.threads)) {
    const std::size_t block_bytes = block_bytes_for(inputs);
    for (auto& group : group_inputs(inputs, block_bytes)) {
      groups_.push_back(std::make_unique<Group>(std::move(group), options.format, block_bytes));
    }
    for (const InputFile& file : inputs) total_bytes_ += file.size_bytes;
  }

  /// Does what is missing. Throws the first fault in input order.
  void run(const std::function<void(const TokenizeProgress&)>& progress) {
    files_.create_directories(folder_);
    std::vector<std::jthread> threads;
    for (int i = 0; i < std::max(1, options_.threads); ++i) {
      threads.emplace_back([this] { work(); });
    }
    const auto report = [&] {
      if (progress) progress({done_bytes_, total_bytes_, reused_bytes_});
    };
    report();
    std::unique_lock lock(mutex_);
    while (
        !finished_.wait_for(lock, std::chrono::milliseconds(500), [&] { return running_ == 0; })) {
      lock.unlock();
      report();
      lock.lock();
    }
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    report();
  }

  TokenizeResult result() const {
    TokenizeResult result{.input_bytes = done_bytes_, .reused_parts = reused_parts_};
    for (const auto& [place, record] : records_) {
      ++result.parts;
      result.documents += record.documents;
      result.tokens += record.tokens;
      result.skipped += record.skipped;
      result.empty += record.empty;
    }
    return result;
  }

  std::vector<fs::path> token_files() const {
    std::vector<fs::path> paths;
    for (const auto& [place, record] : records_) paths.push_back(part_path(place, "tok"));
    return paths;
  }
  const fs::path& folder() const { return folder_; }

 private:
  struct Group {
    Group(std::vector<InputFile> files, const DocumentFormat& format, std::size_t block_bytes)
        : reader(std::move(files), format, block_bytes) {}
    std::mutex mutex;  // of the rest
    BlockReader reader;
    std::size_t next_block = 0;
    std::atomic<bool> is_read = false;  // to its end
  };

  fs::path part_path(BlockPlace place, const char* extension) const {
    return folder_ / fmt::format("part-{:06}-{:06}.{}", place.group, place.block, extension);
  }

  void work() {
    // Blocks of a group are read in order, and what comes before a fault is still done, so the
    // earliest fault is always found, whatever the number of threads.
    BlockPlace place;
    try {
      const EncodeText encode = make_encoder_();
      InputBlock block;
      while (take_block(place, block)) finish(place, block, encode);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (place < first_failed_) {
        first_failed_ = place;
        failure_ = std::current_exception();
      }
    }
    const std::lock_guard lock(mutex_);
    --running_;
    finished_.notify_all();
  }

  bool comes_before_faults(BlockPlace place) {
    const std::lock_guard lock(mutex_);
    return place < first_failed_;
  }

  /// The next block of the first group that nobody is reading at the moment; of the first that is
  /// not read to its end when others read all of them. False when there are none.
  bool take_block(BlockPlace& place, InputBlock& block) {
    while (true) {
      std::unique_lock<std::mutex> lock;
      std::size_t index = groups_.size();
      for (std::size_t i = 0; i < groups_.size(); ++i) {
        if (groups_[i]->is_read) continue;
        index = std::min(index, i);
        lock = std::unique_lock(groups_[i]->mutex, std::try_to_lock);
        if (!lock) continue;
        index = i;
        break;
      }
      if (index == groups_.size()) return false;
      Group& group = *groups_[index];
      if (!lock) lock = std::unique_lock(group.mutex);
      if (group.is_read) continue;
      place = {index, group.next_block};
      if (!comes_before_faults(place)) {
        group.is_read = true;
        continue;
      }
      block = group.reader.next();
      group.is_read = block.records.empty() || block.damage != nullptr;
      ++group.next_block;
      if (block.damage != nullptr || !block.records.empty()) return true;
      done_bytes_ += block.file_bytes;
    }
  }

  void finish(BlockPlace place, InputBlock& block, const EncodeText& encode) {
    const fs::path record_path = part_path(place, "json");
    const std::string key = block_key(block, options_);
    auto record = find_record(record_path, part_path(place, "tok"), key);
    if (record && block.damage == nullptr) {
      ++reused_parts_;
      reused_bytes_ += block.file_bytes;
    } else {
      record = encode_block(place, block, encode);
      record->key = key;
      write_record(files_, record_path, *record);
    }
    done_bytes_ += block.file_bytes;
    const std::lock_guard lock(mutex_);
    records_.emplace(place, *record);
  }

  TokenizeRecord encode_block(BlockPlace place, InputBlock& block, const EncodeText& encode) {
    TokenizeRecord record;
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> starts;
    for (BlockRecord& one : block.records) {
      const auto start = static_cast<std::int64_t>(tokens.size());
      const auto text = record_text(std::move(one.record), *one.file, options_.format.field);
      if (!text) {
        if (options_.on_fault == OnFault::stop) throw text.error();
        ++record.skipped;
        continue;
      }
      encode(*text, tokens);
      if (static_cast<std::int64_t>(tokens.size()) == start) {
        ++record.empty;
        continue;
      }
      if (options_.end_token) tokens.push_back(*options_.end_token);
      starts.push_back(start);
    }
    block.records.clear();
    if (block.damage != nullptr) std::rethrow_exception(block.damage);
    record.documents = static_cast<std::int64_t>(starts.size());
    record.tokens = static_cast<std::int64_t>(tokens.size());
    const fs::path path = part_path(place, "tok");
    write_token_file(files_, path, options_.origin, tokens, starts);
    record.checksum = TokenFile::open(path).header().checksum;
    return record;
  }

  FileSystem& files_;
  const TokenizeOptions& options_;
  const std::function<EncodeText()>& make_encoder_;
  const fs::path folder_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::size_t total_bytes_ = 0;

  std::atomic<std::size_t> done_bytes_ = 0, reused_bytes_ = 0;
  std::atomic<std::int64_t> reused_parts_ = 0;

  std::mutex mutex_;  // of what follows
  std::condition_variable finished_;
  int running_;
  std::map<BlockPlace, TokenizeRecord> records_;
  BlockPlace first_failed_ = {~std::size_t{0}, ~std::size_t{0}};
  std::exception_ptr failure_;
};

/// Everything that will be written or removed must be new, or left by an earlier call.
void check_outputs(const TokenizeOptions& options, const std::vector<InputFile>& inputs) {
  std::vector<fs::path> read;
  for (const InputFile& input : inputs) read.push_back(input.path);
  if (!options.tokenizer.empty()) read.push_back(options.tokenizer);
  const std::string out = options.out.string();
  for (const char* suffix : {"", ".tmp", ".json", ".json.tmp"})
    refuse_to_replace(read, out + suffix);
  const auto refuse = [&](const fs::path& found, const char* what) {
    throw Error(ErrorCode::usage,
                fmt::format("{} is {}, and would be replaced", found.string(), what),
                fmt::format("move it, or give another --out than {}", out));
  };
  if (fs::is_directory(options.out)) refuse(options.out, "a folder");
  const fs::path record = out + ".json";
  if (fs::exists(record) && !is_record(record)) refuse(record, "no record of an earlier call");
  const fs::path parts = out + ".parts";
  if (fs::exists(parts) && !fs::is_directory(parts)) refuse(parts, "a file");
  if (!fs::exists(parts)) return;
  for (const auto& entry : fs::directory_iterator(parts)) {
    const bool is_part = entry.path().filename().string().starts_with("part-");
    if (!is_part) refuse(entry.path(), "no part of an earlier call");
    refuse_to_replace(read, entry.path());
  }
}

}  // namespace

TokenizeResult tokenize(FileSystem& files, const TokenizeOptions& options,
                        const std::function<EncodeText()>& make_encoder,
                        const std::function<void(const TokenizeProgress&)>& progress) {
  HEDDLE_CHECK(!options.inputs.empty(), "no inputs");
  const Inputs inputs = find_inputs(options.inputs, options.kind);
  check_outputs(options, inputs.files);
  const std::string key = call_key(inputs.files, options);
  const fs::path record_path = options.out.string() + ".json";
  if (const auto record = find_record(record_path, options.out, key)) {
    TokenizeResult result;
    for (const InputFile& file : inputs.files) result.input_bytes += file.size_bytes;
    result.documents = record->documents;
    result.tokens = record->tokens;
    result.skipped = record->skipped;
    result.empty = record->empty;
    result.left_out = inputs.left_out;
    result.was_up_to_date = true;
    return result;
  }
  Job job(files, options, make_encoder, inputs.files);
  job.run(progress);
  TokenizeResult result = job.result();
  result.left_out = inputs.left_out;
  if (result.tokens == 0) {
    throw Error(
        ErrorCode::data,
        fmt::format("the inputs hold no text ({} bytes in {}{})", result.input_bytes,
                    options.inputs.front().string(), options.inputs.size() > 1 ? ", ..." : ""),
        "check the input files and the field or the delimiter");
  }
  const TokenFileHeader header =
      concatenate_token_files(files, job.token_files(), options.origin, options.out);
  write_record(files, record_path,
               {.key = key,
                .documents = result.documents,
                .tokens = result.tokens,
                .skipped = result.skipped,
                .empty = result.empty,
                .checksum = header.checksum,
                .tokenizer = options.tokenizer.string()});
  files.remove_all(job.folder());
  return result;
}

}  // namespace heddle
