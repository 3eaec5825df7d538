#include "parallel/exchange/compressed_sum.h"

#include "base/check.h"
#include "parallel/exchange/coded_bytes.h"

namespace heddle {
namespace {

Tensor piece_of(const Tensor& all, std::size_t index, std::size_t count) {
  const std::int64_t each = all.count() / static_cast<std::int64_t>(count);
  const auto at = static_cast<std::int64_t>(index) * each;
  return all.slice(0, at, at + each);
}

/// In the order of ranks.
void add_up(const codec::Codec& codec, const Tensor& bytes, std::size_t pieces, const Tensor& sum,
            Stream& stream) {
  codec.decode(piece_of(bytes, 0, pieces), sum, stream);
  for (std::size_t rank = 1; rank < pieces; ++rank) {
    codec.decode_add(piece_of(bytes, rank, pieces), sum, stream);
  }
}

void encode(const codec::Codec& codec, const Tensor& x, const EncodingBooks& books,
            const Tensor& bytes, std::int64_t piece, const Tensor& workspace, Stream& stream) {
  codec.encode({.x = x,
                .residual = books.residual,
                .bytes = bytes,
                .bad = books.bad,
                .workspace = workspace,
                .piece = piece},
               stream);
}

}  // namespace

CompressedSum::CompressedSum(std::shared_ptr<const codec::Codec> codec, Communicator& ranks,
                             Memory& memory, std::int64_t value_bytes)
    : codec_(std::move(codec)), ranks_(ranks), memory_(memory), value_bytes_(value_bytes) {}

void CompressedSum::Pending::end(Stream& stream) const {
  for (const Work& work : works_) work.wait(stream);
  if (to_.size() == 1) return add_up(*codec_, bytes_, pieces_, to_.front(), stream);
  for (std::size_t rank = 0; rank < to_.size(); ++rank) {
    codec_->decode(piece_of(bytes_, rank, to_.size()), to_[rank], stream);
  }
}

std::int64_t CompressedSum::piece_bytes(std::int64_t values) const {
  HEDDLE_CHECK(values % ranks_.size() == 0, "{} values for {} ranks", values, ranks_.size());
  return static_cast<std::int64_t>(codec_->encoded_bytes(values / ranks_.size()));
}

Tensor CompressedSum::alloc(std::int64_t bytes) const {
  return memory_.alloc({bytes}, DType::u8, MemoryTag::communication);
}

CompressedSum::Dealt CompressedSum::deal_out(const Tensor& whole, const EncodingBooks& books,
                                             Stream& stream) const {
  const std::int64_t bound = piece_bytes(whole.count()), ranks = ranks_.size();
  const std::int64_t values = whole.count() / ranks;
  const Tensor encoded = alloc(ranks * bound);
  const Tensor workspace = alloc(static_cast<std::int64_t>(codec_->workspace_bytes(whole.count())));
  encode(*codec_, whole, books, encoded, values, workspace, stream);
  const Tensor cut =
      cut_to_used(*codec_, encoded.view({ranks, bound}), values, ranks_, memory_, stream);
  const std::int64_t each = cut.size(1);
  Dealt dealt{.work = {}, .sent = cut.view({ranks * each}), .received = alloc(ranks * each)};
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks), each);
  dealt.work = ranks_.all_to_all(dealt.sent, dealt.received, rows, rows, stream,
                                 value_bytes_ * whole.count());
  return dealt;
}

CompressedSum::Pending CompressedSum::scatter(const Tensor& whole, const Tensor& shard,
                                              const EncodingBooks& books, Stream& stream) const {
  HEDDLE_CHECK(shard.count() * ranks_.size() == whole.count(), "{} of {} values on {} ranks",
               shard.count(), whole.count(), ranks_.size());
  Dealt dealt = deal_out(whole, books, stream);
  Pending begun;
  begun.codec_ = codec_;
  begun.works_.push_back(std::move(dealt.work));
  begun.used_ = {dealt.sent};
  begun.bytes_ = dealt.received;
  begun.pieces_ = static_cast<std::size_t>(ranks_.size());
  begun.to_ = {shard};
  return begun;
}

CompressedSum::Pending CompressedSum::sum(const Tensor& whole, const EncodingBooks& books,
                                          const EncodingBooks& of_part, Stream& stream) const {
  HEDDLE_CHECK(!codec_->is_lossless(), "a sum by {}, whose bytes depend on the values",
               codec_->name());
  const auto ranks = static_cast<std::size_t>(ranks_.size());
  const std::int64_t part_values = whole.count() / ranks_.size();
  const std::int64_t each = piece_bytes(whole.count());
  Dealt dealt = deal_out(whole, books, stream);
  const Tensor part = memory_.alloc({part_values}, DType::f32, MemoryTag::communication);
  const Tensor encoded = alloc(each), all = alloc(ranks_.size() * each);
  const Tensor workspace = alloc(static_cast<std::int64_t>(codec_->workspace_bytes(part_values)));
  ranks_.then(
      [codec = codec_, received = dealt.received, part, encoded, workspace, of_part,
       ranks](Stream& behind) {
        add_up(*codec, received, ranks, part, behind);
        encode(*codec, part, of_part, encoded, 0, workspace, behind);
      },
      stream);
  Pending begun;
  begun.codec_ = codec_;
  begun.works_.push_back(std::move(dealt.work));
  begun.works_.push_back(ranks_.all_gather(encoded, all, stream, value_bytes_ * whole.count()));
  begun.used_ = {dealt.sent, dealt.received, part, encoded, workspace};
  begun.bytes_ = all;
  begun.pieces_ = ranks;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    begun.to_.push_back(piece_of(whole, rank, ranks));
  return begun;
}

}  // namespace heddle
