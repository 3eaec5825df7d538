#include "data/tokenize.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "data/tokenize_parts.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

/// The parts of one call, worked on by several threads.
class Job {
 public:
  Job(FileSystem& files, const TokenizeOptions& options,
      const std::function<EncodeText()>& make_encoder, std::vector<TokenizePart> parts)
      : files_(files),
        options_(options),
        make_encoder_(make_encoder),
        folder_(options.out.string() + ".parts"),
        parts_(std::move(parts)),
        records_(parts_.size()),
        running_(std::max(1, options.threads)) {
    for (const TokenizePart& part : parts_) total_bytes_ += part.bytes;
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
    TokenizeResult result{.input_bytes = total_bytes_,
                          .parts = static_cast<std::int64_t>(parts_.size()),
                          .reused_parts = reused_parts_};
    for (const TokenizeRecord& record : records_) {
      result.documents += record.documents;
      result.tokens += record.tokens;
      result.skipped += record.skipped;
      result.empty += record.empty;
    }
    return result;
  }

  std::vector<fs::path> token_files() const {
    std::vector<fs::path> paths;
    for (std::size_t i = 0; i < parts_.size(); ++i) paths.push_back(part_path(i, "tok"));
    return paths;
  }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path part_path(std::size_t part, const char* extension) const {
    return folder_ / fmt::format("part-{:06}.{}", part, extension);
  }

  void work() {
    // Parts are begun in order and one is given up only when an earlier one has failed, so the
    // earliest fault is always found, whatever the number of threads.
    std::size_t part = 0;
    try {
      const EncodeText encode = make_encoder_();
      while ((part = next_part_++) < parts_.size() && part < first_failed_) finish(part, encode);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (part < first_failed_) {
        first_failed_ = part;
        failure_ = std::current_exception();
      }
    }
    const std::lock_guard lock(mutex_);
    --running_;
    finished_.notify_all();
  }

  void finish(std::size_t index, const EncodeText& encode) {
    const TokenizePart& part = parts_[index];
    const fs::path record_path = part_path(index, "json");
    if (auto record = find_record(record_path, part_path(index, "tok"), part.key)) {
      records_[index] = *record;
      ++reused_parts_;
      reused_bytes_ += part.bytes;
      done_bytes_ += part.bytes;
      return;
    }
    records_[index] = encode_part(index, encode);
    write_record(files_, record_path, records_[index]);
  }

  TokenizeRecord encode_part(std::size_t index, const EncodeText& encode) {
    const TokenizePart& part = parts_[index];
    TokenizeRecord record{.key = part.key};
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> starts;
    const std::function<void(std::string_view)> take = [&](std::string_view text) {
      const std::size_t start = tokens.size();
      encode(text, tokens);
      if (tokens.size() == start) {
        ++record.empty;
        return;
      }
      if (options_.end_token) tokens.push_back(*options_.end_token);
      starts.push_back(static_cast<std::int64_t>(start));
    };
    const std::function<void(const Error&)> reject = [&](const Error& error) {
      if (options_.on_fault == OnFault::stop) throw error;
      ++record.skipped;
    };
    for (const InputSegment& segment : part.segments) {
      const MappedFile map(segment.file.path);
      const std::string_view content(reinterpret_cast<const char*>(map.bytes().data()),
                                     map.bytes().size());
      if (content.size() != segment.file.size_bytes) {
        throw Error(ErrorCode::data,
                    fmt::format("{} changed while it was read", segment.file.path.string()),
                    "run the command again when it is complete");
      }
      read_documents(segment.file, content, segment.begin, segment.end, options_.format, take,
                     reject);
      done_bytes_ += segment.end - segment.begin;
    }
    record.documents = static_cast<std::int64_t>(starts.size());
    record.tokens = static_cast<std::int64_t>(tokens.size());
    const fs::path path = part_path(index, "tok");
    write_token_file(files_, path, options_.origin, tokens, starts);
    record.checksum = TokenFile::open(path).header().checksum;
    return record;
  }

  FileSystem& files_;
  const TokenizeOptions& options_;
  const std::function<EncodeText()>& make_encoder_;
  const fs::path folder_;
  const std::vector<TokenizePart> parts_;
  std::size_t total_bytes_ = 0;

  std::vector<TokenizeRecord> records_;  // each written by the thread that has the part
  std::atomic<std::size_t> next_part_ = 0, done_bytes_ = 0, reused_bytes_ = 0;
  std::atomic<std::size_t> first_failed_ = ~std::size_t{0};
  std::atomic<std::int64_t> reused_parts_ = 0;

  std::mutex mutex_;
  std::condition_variable finished_;
  int running_;
  std::exception_ptr failure_;
};

std::string whole_key(const std::vector<TokenizePart>& parts) {
  std::string keys;
  for (const TokenizePart& part : parts) keys += part.key;
  return fmt::format("{:016x}", content_hash(std::as_bytes(std::span(keys))));
}

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
  std::vector<TokenizePart> parts = plan_parts(inputs.files, options);
  const std::string key = whole_key(parts);
  const fs::path record_path = options.out.string() + ".json";
  Job job(files, options, make_encoder, std::move(parts));
  if (const auto record = find_record(record_path, options.out, key)) {
    TokenizeResult result = job.result();
    result.documents = record->documents;
    result.tokens = record->tokens;
    result.skipped = record->skipped;
    result.empty = record->empty;
    result.reused_parts = result.parts;
    result.left_out = inputs.left_out;
    result.was_up_to_date = true;
    return result;
  }
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
