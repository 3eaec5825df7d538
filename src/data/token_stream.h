#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "data/token_file.h"
#include "data/tokenize_job.h"

namespace heddle {

/// Token files that are still being made, in an order that does not depend on how fast.
class TokenShards {
 public:
  virtual ~TokenShards() = default;
  /// Shard number `index` from 0 on, when it is there; absent when there are not so many. Throws
  /// what kept it from being made, and Error(stopped) when `stop` is requested meanwhile.
  /// Thread-safe.
  virtual std::optional<TokenFile> shard(std::size_t index, const std::stop_token& stop) = 0;
};

/// The blocks of text or records, tokenized in the background into a folder of their own, which is
/// kept: a call with the same inputs and options goes on where an earlier one was interrupted. Of
/// processes that share the folder one makes the files, and the others find them.
class TokenStream : public TokenShards {
 public:
  /// `options.out` gives the folder its name: OUT.stream-KEY. Other folders OUT.stream-* are
  /// removed by who makes it. Throws Error(usage) for standard input.
  TokenStream(FileSystem& files, const TokenizeOptions& options,
              const std::function<EncodeText()>& make_encoder, bool is_maker);
  /// Stops what is under way; finished blocks stay.
  ~TokenStream() override;

  std::optional<TokenFile> shard(std::size_t index, const std::stop_token& stop) override;

 private:
  void make(const std::filesystem::path& out);
  /// Learns of one more block, or of the end of its group. False when it has to wait for that.
  bool look();

  FileSystem& files_;
  std::filesystem::path folder_;
  std::size_t groups_ = 0;

  std::mutex mutex_;  // of what follows
  std::vector<std::filesystem::path> found_;
  BlockPlace next_;  // to be looked for
  std::exception_ptr failure_;

  std::unique_ptr<TokenizeJob> job_;  // of the maker
  std::jthread worker_;               // last: joined before the rest goes
};

}  // namespace heddle
