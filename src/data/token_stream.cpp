#include "data/token_stream.h"

#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

/// Others write the files, so that there is nothing to wait for but time.
constexpr auto kLookAgain = std::chrono::milliseconds(20);

/// Folders of earlier calls with other inputs or options.
void remove_others(FileSystem& files, const fs::path& folder, const std::string& prefix) {
  std::error_code error;
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder.parent_path(), error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && entry.path() != folder) others.push_back(entry.path());
  }
  for (const fs::path& other : others) files.remove_all(other);
}

}  // namespace

TokenStream::TokenStream(FileSystem& files, const TokenizeOptions& options,
                         const std::function<EncodeText()>& make_encoder, bool is_maker)
    : files_(files) {
  const Inputs inputs = find_inputs(options.inputs, options.kind);
  for (const InputFile& file : inputs.files) {
    if (!file.is_standard_input()) continue;
    throw Error(ErrorCode::usage, "standard input cannot be read again when a run is resumed",
                "tokenize it first: heddle tokenize - --out FILE");
  }
  const std::string prefix = options.out.filename().string() + ".stream-";
  folder_ = fs::absolute(options.out).parent_path() / (prefix + call_key(inputs.files, options));
  groups_ = group_inputs(inputs.files, block_bytes_for(inputs.files)).size();
  if (!is_maker) return;
  files_.create_directories(folder_);
  remove_others(files_, folder_, prefix);
  const bool is_complete = read_group_end(group_end_path(folder_, groups_)).has_value();
  if (is_complete) return;
  job_ = std::make_unique<TokenizeJob>(files, options, make_encoder, inputs.files, folder_);
  worker_ = std::jthread([this, out = options.out] { make(out); });
}

TokenStream::~TokenStream() {
  if (job_) job_->stop();
}

void TokenStream::make(const fs::path& out) {
  try {
    job_->run({});
    if (job_->is_stopped()) return;
    // The end of a group that does not exist says that all others are complete.
    write_group_end(files_, group_end_path(folder_, groups_), 0);
    const TokenizeResult result = job_->result();
    log_info("all of {} is tokenized: {} documents, {} tokens", out.stem().string(),
             format_thousands(result.documents), format_thousands(result.tokens));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

bool TokenStream::look() {
  if (fs::exists(part_path(folder_, next_, "json"))) {
    found_.push_back(part_path(folder_, next_, "tok"));
    ++next_.block;
    return true;
  }
  const auto blocks = read_group_end(group_end_path(folder_, next_.group));
  if (!blocks || next_.block < *blocks) return false;
  next_ = {next_.group + 1, 0};
  return true;
}

std::optional<TokenFile> TokenStream::shard(std::size_t index, const std::stop_token& stop) {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      while (found_.size() <= index && next_.group < groups_ && look()) continue;
      if (found_.size() > index) return TokenFile::open(found_[index]);
      if (next_.group == groups_) return std::nullopt;
      if (failure_ != nullptr) std::rethrow_exception(failure_);
    }
    if (stop.stop_requested()) fail(ErrorCode::stopped, "stopped while data was tokenized");
    std::this_thread::sleep_for(kLookAgain);
  }
}

}  // namespace heddle
