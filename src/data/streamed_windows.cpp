#include "data/streamed_windows.h"

#include <algorithm>

#include "base/error.h"

namespace heddle {

StreamedWindows::StreamedWindows(std::shared_ptr<TokenShards> shards, TokenRange first,
                                 std::int64_t seq_len, std::uint64_t seed, std::string name)
    : shards_(std::move(shards)),
      first_(first),
      seq_len_(seq_len),
      seed_(seed),
      name_(std::move(name)) {}

std::shared_ptr<const TokenFile> StreamedWindows::open(std::size_t index,
                                                       const std::stop_token& stop) {
  if (!file_ || opened_ != index) {
    file_ = std::make_shared<const TokenFile>(*shards_->shard(index, stop));
    opened_ = index;
  }
  return file_;
}

bool StreamedWindows::grow(const std::stop_token& stop) {
  const std::optional<TokenFile> file = shards_->shard(next_, stop);
  if (!file) return false;
  const TokenRange range = next_ == 0 ? first_ : TokenRange{0, file->token_count()};
  if (range.size() > seq_len_) {  // what is too short for a window is passed over
    // By place and content, as whole files are (dataset.cpp).
    const std::string name = fmt::format("{}:{}:{:016x}", name_, next_, file->header().checksum);
    known_.push_back({next_, WindowSampler(range, seq_len_, seed_, name), count_});
    count_ += known_.back().sampler.windows();
  }
  ++next_;
  return true;
}

StreamedWindows::Place StreamedWindows::place(std::int64_t sample, const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  while (windows_ == 0 && count_ <= sample) {
    if (grow(stop)) continue;
    if (count_ == 0) {
      throw Error(ErrorCode::data,
                  fmt::format("no part of the streamed data holds a window of {} tokens", seq_len_),
                  "add text, lower data.seq_len, or set data.stream = false");
    }
    windows_ = count_;
  }
  const std::int64_t epoch = windows_ == 0 ? 0 : sample / windows_;
  const std::int64_t within = sample - epoch * windows_;
  const auto after =
      std::upper_bound(known_.begin(), known_.end(), within,
                       [](std::int64_t value, const Shard& shard) { return value < shard.begin; });
  const Shard& shard = *std::prev(after);
  const std::int64_t begin =
      shard.sampler.window_begin(epoch * shard.sampler.windows() + within - shard.begin);
  return {.file = open(shard.index, stop), .epoch = epoch, .begin = begin};
}

}  // namespace heddle
