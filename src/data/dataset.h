#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/mixture.h"
#include "data/packing.h"
#include "data/sampler.h"
#include "data/streamed_windows.h"
#include "data/token_file.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace heddle {

struct DataSource {
  std::filesystem::path file;
  double weight = 1.0;    ///< share of the samples, relative to the other sources
  std::string name = {};  ///< for reports; the path when empty
  /// In place of `file`: what is trained on while it is made (docs/design/063-data-formats.md).
  std::shared_ptr<TokenShards> shards = {};
};

struct DatasetOptions {
  std::vector<DataSource> sources;
  std::int64_t seq_len = 0;
  std::uint64_t seed = 0;
  /// Fraction at the end of each file, of streams of the first shard, kept for evaluation; 1 makes
  /// a dataset for evaluation only.
  double holdout = 0.0;
  DocumentMode documents = DocumentMode::mask;
};

/// Rows of tokens for a model; all i32 on the host, B rows of seq_len.
struct Batch {
  Tensor ids_BS;
  Tensor targets_BS;    ///< next token or kIgnoredTarget
  Tensor positions_BS;  ///< for RoPE or learned positions
  Tensor first_key_BS;  ///< for ops::AttentionMask
  std::int64_t target_count = 0;
};

/// Where a training sample lies.
struct SampleOrigin {
  int source = 0;
  std::int64_t epoch = 0;  ///< of that source
  std::int64_t begin = 0;  ///< first token in its file; of streams, in its shard
};

/// What a run has taken from one source.
struct SourceUse {
  std::string name;
  double weight = 0;  ///< in effect
  std::int64_t samples = 0, tokens = 0;
  double epochs = 0;  ///< 0 for a stream whose end is not known yet
};

/// Token files opened for one run, their training and held-out parts, and the order of training
/// samples: a pure function of (content of the files, their places in the list, options, sample
/// number), whatever the files are called, the same for any number of ranks and threads. Immutable
/// and thread-safe. Failures name the file: Error(data) for content, Error(usage) for options.
class Dataset {
 public:
  explicit Dataset(const DatasetOptions& options);

  std::int64_t seq_len() const { return options_.seq_len; }
  std::int64_t vocab_size() const;
  std::uint64_t tokenizer_fingerprint() const;
  /// Training windows of all sources in one pass over each; 0 for streams whose end is not known.
  std::int64_t train_windows() const;
  bool is_streamed() const;

  /// Training sample number `sample` of the run, from 0 without end.
  SampleOrigin sample(std::int64_t sample) const;
  /// Training samples [first, first + rows). Waits for streams, until `stop` is requested.
  Batch batch(std::int64_t first, std::int64_t rows, Memory& memory,
              const std::stop_token& stop = {}) const;
  /// What the first `samples` training samples took from each source. Tokens are inputs read:
  /// seq_len per sample.
  std::vector<SourceUse> use(std::int64_t samples) const;

  /// Consecutive windows over the held-out parts of all sources, the last of each padded: every
  /// held-out token but the first of each part is a target exactly once.
  std::int64_t eval_windows() const;
  /// Those of one source; they stand behind those of the sources before it.
  std::int64_t eval_windows(int source) const {
    return sources_[static_cast<std::size_t>(source)].eval_windows;
  }
  /// Held-out windows [first, min(first + rows, eval_windows())).
  Batch eval_batch(std::int64_t first, std::int64_t rows, Memory& memory) const;

  /// What people call a source.
  const std::string& name(int source) const;
  /// Opened sources, for reports; of streams the first shard.
  const TokenFile& file(int source) const {
    return *sources_[static_cast<std::size_t>(source)].file;
  }
  const Splits& splits(int source) const {
    return sources_[static_cast<std::size_t>(source)].splits;
  }
  int source_count() const { return static_cast<int>(sources_.size()); }

 private:
  struct Source {
    std::shared_ptr<const TokenFile> file;
    Splits splits;
    std::int64_t eval_windows = 0;
    // How it is trained on: neither when nothing is, otherwise one of the two.
    std::optional<WindowSampler> sampler = {};
    std::shared_ptr<StreamedWindows> stream = {};

    std::int64_t windows() const { return stream ? stream->windows() : sampler->windows(); }
  };
  Source open_source(const DataSource& source) const;
  Batch allocate(std::int64_t rows, Memory& memory) const;
  StreamedWindows::Place place(std::int64_t sample, int& source, const std::stop_token& stop) const;
  void fill_row(const TokenFile& file, TokenRange range, std::int64_t row, Batch& batch) const;

  DatasetOptions options_;
  std::vector<Source> sources_;
  Mixture mixture_;
};

}  // namespace heddle
