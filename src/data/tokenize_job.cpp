#include "data/tokenize_job.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/error.h"

namespace heddle {
namespace fs = std::filesystem;

struct TokenizeJob::Group {
  Group(std::vector<InputFile> files, const DocumentFormat& format, std::size_t block_bytes)
      : reader(std::move(files), format, block_bytes) {}
  std::mutex mutex;  // of the rest
  BlockReader reader;
  std::size_t next_block = 0;
  std::atomic<bool> is_read = false;  // to its end
};

fs::path part_path(const fs::path& folder, BlockPlace place, const char* extension) {
  return folder / fmt::format("part-{:06}-{:06}.{}", place.group, place.block, extension);
}

fs::path group_end_path(const fs::path& folder, std::size_t group) {
  return folder / fmt::format("part-{:06}.json", group);
}

TokenizeJob::TokenizeJob(FileSystem& files, TokenizeOptions options,
                         std::function<EncodeText()> make_encoder,
                         const std::vector<InputFile>& inputs, fs::path folder)
    : files_(files),
      options_(std::move(options)),
      make_encoder_(std::move(make_encoder)),
      folder_(std::move(folder)),
      running_(std::max(1, options_.threads)) {
  const std::size_t block_bytes = block_bytes_for(inputs);
  DocumentFormat format = options_.format;
  format.end_token = options_.end_token;
  if (options_.on_fault == OnFault::skip) format.cut = {};  // documents are left out whole
  for (auto& group : group_inputs(inputs, block_bytes)) {
    groups_.push_back(std::make_unique<Group>(std::move(group), format, block_bytes));
  }
  for (const InputFile& file : inputs) total_bytes_ += file.size_bytes;
}

TokenizeJob::~TokenizeJob() = default;

void TokenizeJob::run(const std::function<void(const TokenizeProgress&)>& progress) {
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
  while (!finished_.wait_for(lock, std::chrono::milliseconds(500), [&] { return running_ == 0; })) {
    lock.unlock();
    report();
    lock.lock();
  }
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  report();
}

TokenizeResult TokenizeJob::result() const {
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

std::vector<TokenFilePart> TokenizeJob::token_files() const {
  std::vector<TokenFilePart> files;
  for (const auto& [place, record] : records_) {
    files.push_back({part_path(folder_, place, "tok"), record.continues});
  }
  return files;
}

void TokenizeJob::work() {
  // Blocks of a group are read in order, and what comes before a fault is still done, so the
  // earliest fault is always found, whatever the number of threads.
  BlockPlace place;
  try {
    const EncodeText encode = make_encoder_();
    InputBlock block;
    while (!is_stopped_ && take_block(place, block)) finish(place, block, encode);
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

bool TokenizeJob::comes_before_faults(BlockPlace place) {
  const std::lock_guard lock(mutex_);
  return place < first_failed_;
}

/// The next block of the first group that nobody is reading at the moment; of the first that is not
/// read to its end when others read all of them. False when there are none.
bool TokenizeJob::take_block(BlockPlace& place, InputBlock& block) {
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
    if (!lock) lock = std::unique_lock(groups_[index]->mutex);
    if (read_block(*groups_[index], index, place, block)) return true;
  }
}

/// The next block of a group that this thread has locked; false when there is none.
bool TokenizeJob::read_block(Group& group, std::size_t index, BlockPlace& place,
                             InputBlock& block) {
  if (group.is_read) return false;
  place = {index, group.next_block};
  if (!comes_before_faults(place)) {
    group.is_read = true;
    return false;
  }
  block = group.reader.next();
  group.is_read = block.records.empty() || block.damage != nullptr;
  if (block.damage != nullptr || !block.records.empty()) {
    ++group.next_block;
    return true;
  }
  done_bytes_ += block.file_bytes;
  write_group_end(files_, group_end_path(folder_, index), group.next_block);
  return false;
}

void TokenizeJob::finish(BlockPlace place, InputBlock& block, const EncodeText& encode) {
  const fs::path record_path = part_path(folder_, place, "json");
  const std::string key = block_key(block, options_);
  auto record = find_record(record_path, part_path(folder_, place, "tok"), key);
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

TokenizeRecord TokenizeJob::encode_block(BlockPlace place, InputBlock& block,
                                         const EncodeText& encode) {
  TokenizeRecord record;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> starts;
  record.continues = !block.records.empty() && block.records.front().record.continues;
  for (BlockRecord& one : block.records) {
    const auto start = static_cast<std::int64_t>(tokens.size());
    // A token file begins with a document; that this one does not is in the record.
    const bool begins = !one.record.continues || starts.empty();
    if (auto fault = append_tokens(one, encode, tokens)) {
      if (options_.on_fault == OnFault::stop) throw *std::move(fault);
      ++record.skipped;
    } else if (static_cast<std::int64_t>(tokens.size()) == start) {
      ++record.empty;
    } else if (begins) {
      starts.push_back(start);
    }
  }
  block.records.clear();
  if (block.damage != nullptr) std::rethrow_exception(block.damage);
  record.documents = std::ssize(starts) - (record.continues ? 1 : 0);
  record.tokens = static_cast<std::int64_t>(tokens.size());
  const fs::path path = part_path(folder_, place, "tok");
  write_token_file(files_, path, options_.origin, tokens, starts);
  record.checksum = TokenFile::open(path).header().checksum;
  return record;
}

/// Appends a record's tokens with the end token, or says what is wrong with it. Tokens that
/// somebody else made are taken as they are.
std::optional<Error> TokenizeJob::append_tokens(BlockRecord& one, const EncodeText& encode,
                                                std::vector<std::int32_t>& tokens) const {
  Record& record = one.record;
  if (record.form == Record::Form::tokens) {
    const auto fits = [&](std::int32_t token) {
      return token >= 0 && token < options_.origin.vocab_size;
    };
    if (!std::all_of(record.tokens.begin(), record.tokens.end(), fits)) {
      return Error(ErrorCode::data,
                   fmt::format("{}: it has tokens outside of the tokenizer's vocabulary of {}",
                               place_of(*one.file, record.number), options_.origin.vocab_size),
                   "give the tokenizer that made them, and check that the file holds tokens");
    }
    tokens.insert(tokens.end(), record.tokens.begin(), record.tokens.end());
    return std::nullopt;
  }
  const bool continues = record.continues, goes_on = record.goes_on;
  const auto text = record_text(std::move(record), *one.file, options_.format.field);
  if (!text) return text.error();
  const std::size_t before = tokens.size();
  encode(*text, continues, tokens);
  const bool has_tokens = tokens.size() > before;
  HEDDLE_CHECK(has_tokens || !(continues || goes_on), "a part of a document without tokens");
  if (options_.end_token && has_tokens && !goes_on) tokens.push_back(*options_.end_token);
  return std::nullopt;
}

}  // namespace heddle
