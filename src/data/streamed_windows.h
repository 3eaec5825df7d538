#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/sampler.h"
#include "data/token_stream.h"

namespace heddle {

/// The order in which training reads the windows of a source that is still being tokenized: shard
/// after shard, the windows of each shuffled (WindowSampler). A function of the shards' content,
/// the seed and the sample alone; how far tokenizing has come decides only how long place() waits.
/// Thread-safe.
class StreamedWindows {
 public:
  struct Place {
    std::shared_ptr<const TokenFile> file;
    std::int64_t epoch = 0, begin = 0;
  };

  /// Of the first shard only `first` is trained on.
  StreamedWindows(std::shared_ptr<TokenShards> shards, TokenRange first, std::int64_t seq_len,
                  std::uint64_t seed, std::string name);

  /// Where the window of sample `sample` lies. Waits for its shard. Throws what keeps it from being
  /// made, and Error(data) when all shards together hold no window.
  Place place(std::int64_t sample, const std::stop_token& stop);
  /// Of all shards, once they are known; before, 0.
  std::int64_t windows() const { return windows_; }

 private:
  struct Shard {
    std::size_t index = 0;
    WindowSampler sampler;
    std::int64_t begin = 0;  // windows of shards before it
  };
  /// Learns of the next shard; false when there is none.
  bool grow(const std::stop_token& stop);
  std::shared_ptr<const TokenFile> open(std::size_t index, const std::stop_token& stop);

  const std::shared_ptr<TokenShards> shards_;
  const TokenRange first_;
  const std::int64_t seq_len_;
  const std::uint64_t seed_;
  const std::string name_;
  std::atomic<std::int64_t> windows_ = 0;

  std::mutex mutex_;  // of what follows
  std::vector<Shard> known_;
  std::size_t next_ = 0;                   // shard to learn of
  std::int64_t count_ = 0;                 // windows of known_
  std::size_t opened_ = 0;                 // the last that was asked for
  std::shared_ptr<const TokenFile> file_;  // of that shard
};

}  // namespace heddle
