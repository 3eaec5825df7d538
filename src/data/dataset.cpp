#include "data/dataset.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace heddle {
namespace {

std::vector<double> weights_of(const std::vector<DataSource>& sources) {
  std::vector<double> weights;
  for (const DataSource& source : sources) weights.push_back(source.weight);
  return weights;
}

WindowRow row_of(const Batch& batch, std::int64_t row) {
  const auto span = [&](const Tensor& tensor_BS) {
    return tensor_BS.select(0, row).host<std::int32_t>();
  };
  return {span(batch.ids_BS), span(batch.targets_BS), span(batch.positions_BS),
          span(batch.first_key_BS)};
}

std::int64_t windows_to_cover(std::int64_t tokens, std::int64_t seq_len) {
  return tokens < 2 ? 0 : (tokens - 2) / seq_len + 1;
}

}  // namespace

Dataset::Dataset(const DatasetOptions& options)
    : options_(options), mixture_(weights_of(options.sources)) {
  if (options.seq_len < 1) {
    throw Error(ErrorCode::usage, fmt::format("a sequence length of {}", options.seq_len),
                "use at least 1");
  }
  if (!(options.holdout >= 0.0 && options.holdout <= 1.0)) {
    throw Error(ErrorCode::usage, fmt::format("a held-out fraction of {}", options.holdout),
                "use a number from 0 to 1");
  }
  for (const DataSource& source : options.sources) sources_.push_back(open_source(source));
  for (const Source& one : sources_) {
    for (const Source& other : sources_) require_same_tokenizer(*one.file, *other.file);
  }
  if (options.holdout == 1.0) return;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    if (const auto& shards = options.sources[i].shards) {
      source.stream = std::make_shared<StreamedWindows>(
          shards, source.splits.train, options.seq_len, options.seed, fmt::format("{}", i));
      continue;
    }
    // By place and content, never by name or path: the same text gives the same order anywhere.
    const std::string name = fmt::format("{}:{:016x}", i, source.file->header().checksum);
    source.sampler.emplace(source.splits.train, options.seq_len, options.seed, name);
  }
}

namespace {

TokenFile open_first(const DataSource& source) {
  if (!source.shards) return TokenFile::open(source.file);
  std::optional<TokenFile> first = source.shards->shard(0, {});
  if (first) return *std::move(first);
  throw Error(ErrorCode::data, fmt::format("{} holds no text", source.name),
              "check the input files and data.field");
}

}  // namespace

Dataset::Source Dataset::open_source(const DataSource& source) const {
  TokenFile file = open_first(source);
  const Splits splits = split_tokens(file, options_.holdout);
  const std::int64_t needed = options_.seq_len + 1;
  if (options_.holdout < 1.0 && splits.train.size() < needed) {
    throw Error(
        ErrorCode::data,
        fmt::format("{}: {} tokens for training ({} in the file, {} held out), but one window of "
                    "sequence length {} needs {}",
                    file.name(), splits.train.size(), file.token_count(), splits.held_out.size(),
                    options_.seq_len, needed),
        "add text, or lower the sequence length or data.holdout");
  }
  if (options_.holdout > 0.0 && splits.held_out.size() < 2) {
    throw Error(ErrorCode::data,
                fmt::format("{}: {} of {} tokens held out, but evaluation needs 2", file.name(),
                            splits.held_out.size(), file.token_count()),
                "add text, raise data.holdout, or set it to 0");
  }
  const std::int64_t eval_windows = windows_to_cover(splits.held_out.size(), options_.seq_len);
  return {.file = std::make_shared<const TokenFile>(std::move(file)),
          .splits = splits,
          .eval_windows = eval_windows};
}

std::int64_t Dataset::vocab_size() const { return sources_.front().file->header().vocab_size; }

std::uint64_t Dataset::tokenizer_fingerprint() const {
  return sources_.front().file->header().tokenizer_fingerprint;
}

std::int64_t Dataset::train_windows() const {
  std::int64_t windows = 0;
  for (const Source& source : sources_) windows += source.windows();
  return windows;
}

bool Dataset::is_streamed() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const Source& source) { return source.stream != nullptr; });
}

StreamedWindows::Place Dataset::place(std::int64_t sample, int& source,
                                      const std::stop_token& stop) const {
  HEDDLE_CHECK(options_.holdout < 1.0, "a dataset for evaluation only has no training samples");
  const Mixture::Pick pick = mixture_.pick(sample);
  source = pick.source;
  const Source& from = sources_[static_cast<std::size_t>(pick.source)];
  if (from.stream) return from.stream->place(pick.index, stop);
  return {.file = from.file,
          .epoch = from.sampler->epoch_of(pick.index),
          .begin = from.sampler->window_begin(pick.index)};
}

SampleOrigin Dataset::sample(std::int64_t sample) const {
  SampleOrigin origin;
  const StreamedWindows::Place found = place(sample, origin.source, {});
  origin.epoch = found.epoch;
  origin.begin = found.begin;
  return origin;
}

Batch Dataset::allocate(std::int64_t rows, Memory& memory) const {
  const auto rows_BS = [&] { return memory.alloc({rows, seq_len()}, DType::i32, MemoryTag::data); };
  return {.ids_BS = rows_BS(),
          .targets_BS = rows_BS(),
          .positions_BS = rows_BS(),
          .first_key_BS = rows_BS(),
          .target_count = 0};
}

void Dataset::fill_row(const TokenFile& file, TokenRange range, std::int64_t row,
                       Batch& batch) const {
  batch.target_count +=
      pack_window(file, range.begin, range.end, options_.documents, row_of(batch, row));
}

Batch Dataset::batch(std::int64_t first, std::int64_t rows, Memory& memory,
                     const std::stop_token& stop) const {
  Batch batch = allocate(rows, memory);
  for (std::int64_t row = 0; row < rows; ++row) {
    int source = 0;
    const StreamedWindows::Place from = place(first + row, source, stop);
    fill_row(*from.file, {from.begin, from.begin + seq_len() + 1}, row, batch);
  }
  return batch;
}

const std::string& Dataset::name(int source) const {
  const std::string& given = options_.sources[static_cast<std::size_t>(source)].name;
  return given.empty() ? file(source).name() : given;
}

std::vector<SourceUse> Dataset::use(std::int64_t samples) const {
  const std::vector<std::int64_t> counts = mixture_.counts(samples);
  const std::vector<double> weights = mixture_.weights();
  std::vector<SourceUse> out;
  if (options_.holdout == 1.0) return out;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const auto windows = static_cast<double>(sources_[i].windows());
    out.push_back({.name = name(static_cast<int>(i)),
                   .weight = weights[i],
                   .samples = counts[i],
                   .tokens = counts[i] * seq_len(),
                   .epochs = windows > 0 ? static_cast<double>(counts[i]) / windows : 0.0});
  }
  return out;
}

std::int64_t Dataset::eval_windows() const {
  std::int64_t windows = 0;
  for (const Source& source : sources_) windows += source.eval_windows;
  return windows;
}

Batch Dataset::eval_batch(std::int64_t first, std::int64_t rows, Memory& memory) const {
  HEDDLE_CHECK(first >= 0 && first < eval_windows(), "held-out window {} of {}", first,
               eval_windows());
  rows = std::min(rows, eval_windows() - first);
  Batch batch = allocate(rows, memory);
  std::int64_t window = first, row = 0;
  for (const Source& source : sources_) {
    for (; window < source.eval_windows && row < rows; ++window, ++row) {
      const TokenRange& part = source.splits.held_out;
      const std::int64_t begin = part.begin + window * seq_len();
      fill_row(*source.file, {begin, std::min(part.end, begin + seq_len() + 1)}, row, batch);
    }
    window = std::max<std::int64_t>(0, window - source.eval_windows);
  }
  return batch;
}

}  // namespace heddle
