#include "parallel/sequence/context_division.h"

#include <algorithm>

namespace heddle {
namespace {

/// The lengths of documents of all sequences, one behind the other.
std::vector<std::int64_t> documents_of(const MicroBatch& batch) {
  const std::int64_t S = batch.seq_len();
  std::vector<std::int64_t> lengths;
  if (!batch.first_key.defined()) {
    lengths.assign(static_cast<std::size_t>(batch.sequences()), S);
    return lengths;
  }
  const auto first_key = batch.first_key.host<std::int32_t>();
  for (std::int64_t i = 0; i < batch.tokens(); ++i) {
    // A document begins where its first key is the token itself.
    const bool begins = first_key[static_cast<std::size_t>(i)] == i % S;
    if (begins) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

/// The elements of a tensor [B, S] at these positions, as [1, n].
Tensor pick(const Tensor& whole_BS, const TokenRuns& tokens, Memory& host) {
  if (!whole_BS.defined()) return {};
  const Tensor picked = host.alloc({1, tokens_in(tokens)}, DType::i32, MemoryTag::data);
  const auto from = whole_BS.host<std::int32_t>();
  auto to = picked.host<std::int32_t>().begin();
  for (const TokenRun& run : tokens) {
    for (std::int64_t i = 0; i < run.count; ++i) *to++ = from[static_cast<std::size_t>(run.at(i))];
  }
  return picked;
}

}  // namespace

MicroBatch ContextDivision::share(const MicroBatch& whole, Memory& host) {
  shape_.tokens = whole.tokens();
  std::vector<std::int64_t> documents = documents_of(whole);
  if (!last_ || last_->plan.shape.tokens != shape_.tokens ||
      last_->plan.shape.documents != documents) {
    shape_.documents = std::move(documents);
    last_ = make_rank_context(shape_, rank_, meter_, windows_);
    places_.reset();
  }
  const TokenRuns& tokens = last_->plan.held[static_cast<std::size_t>(rank_)];
  if (!places_ || places_->sequences != whole.sequences()) {
    auto places = std::make_shared<TokenPlaces>();
    places->sequences = whole.sequences();
    places->seq_len = whole.seq_len();
    for (const TokenRun& run : tokens) {
      for (std::int64_t i = 0; i < run.count; ++i) places->of_whole.push_back(run.at(i));
    }
    places_ = std::move(places);
  }
  return {.ids = pick(whole.ids, tokens, host),
          .targets = pick(whole.targets, tokens, host),
          .positions = pick(whole.positions, tokens, host),
          .first_key = {},
          .context = last_,
          .places = places_,
          .number = whole.number};
}

}  // namespace heddle
