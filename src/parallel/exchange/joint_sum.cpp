#include "parallel/exchange/joint_sum.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/elementwise.h"
#include "ops/frozen_adam.h"

namespace heddle {

JointChunks::JointChunks(const codec::Codec& codec, std::vector<std::int64_t> values, int ranks)
    : codec_(codec), values_(std::move(values)), ranks_(ranks) {}

JointChunks::Range JointChunks::chunk(std::size_t tensor, int rank) const {
  const std::int64_t all = values_[tensor], each = piece(tensor);
  return {std::min(all, each * rank), std::min(all, each * (rank + 1))};
}

std::int64_t JointChunks::chunk_bytes(int rank) const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    bytes += static_cast<std::int64_t>(codec_.encoded_bytes(chunk(i, rank).count()));
  }
  return bytes;
}

std::int64_t JointChunks::dealt_bytes() const {
  std::int64_t bytes = 0;
  for (int rank = 0; rank < ranks_; ++rank) bytes += chunk_bytes(rank);
  return bytes;
}

JointSum::JointSum(const codec::Codec& codec, Communicator& ranks, std::vector<std::int64_t> values,
                   Memory& memory)
    : codec_(codec),
      ranks_(ranks),
      chunks_(codec, std::move(values), ranks.size()),
      memory_(memory) {
  HEDDLE_CHECK(!codec.is_lossless(), "a sum by {}, whose bytes depend on the values", codec.name());
}

Tensor JointSum::bytes(std::int64_t count) const {
  return memory_.alloc({count}, DType::u8, MemoryTag::communication);
}

template <class Visit>
void JointSum::for_chunks(int rank, const Visit& visit) const {
  std::int64_t at = 0;
  for (std::size_t i = 0; i < chunks_.tensors(); ++i) {
    const JointChunks::Range chunk = chunks_.chunk(i, rank);
    const auto size = static_cast<std::int64_t>(codec_.encoded_bytes(chunk.count()));
    if (size > 0) visit(i, chunk, JointChunks::Range{at, at + size});
    at += size;
  }
}

/// A codec writes the chunks of one tensor behind each other; ranks get theirs of all tensors.
Tensor JointSum::encode_all(std::span<const Tensor> tensors, std::span<const Books> books,
                            const Tensor& bad, Stream& stream) const {
  const Tensor sent = bytes(chunks_.dealt_bytes());
  std::vector<std::int64_t> at(static_cast<std::size_t>(ranks_.size()), 0);  // by rank
  for (std::size_t rank = 1; rank < at.size(); ++rank) {
    at[rank] = at[rank - 1] + chunks_.chunk_bytes(static_cast<int>(rank) - 1);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t values = chunks_.values(i), piece = chunks_.piece(i);
    const Tensor encoded = bytes(static_cast<std::int64_t>(codec_.encoded_bytes(values, piece)));
    const Tensor workspace = bytes(static_cast<std::int64_t>(codec_.workspace_bytes(values)));
    codec_.encode({.x = tensors[i],
                   .residual = books[i].worker,
                   .bytes = encoded,
                   .bad = bad,
                   .workspace = workspace,
                   .piece = piece},
                  stream);
    std::int64_t from = 0;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const auto size =
          static_cast<std::int64_t>(codec_.encoded_bytes(chunks_.chunk(i, rank).count()));
      if (size == 0) continue;
      std::int64_t& to = at[static_cast<std::size_t>(rank)];
      ops::copy(encoded.slice(0, from, from + size), sent.slice(0, to, to + size), stream);
      from += size;
      to += size;
    }
  }
  return sent;
}

/// In the order of ranks.
Tensor JointSum::add_up(const Tensor& received, std::span<const Books> books, const Tensor& bad,
                        const Tensor& guard, Stream& stream) const {
  using Range = JointChunks::Range;
  const int own = ranks_.rank();
  const std::int64_t each = chunks_.chunk_bytes(own);
  const Tensor encoded = bytes(chunks_.chunk_bytes(0));
  for_chunks(own, [&](std::size_t i, Range chunk, Range at) {
    const Tensor sum = memory_.alloc({chunk.count()}, DType::f32, MemoryTag::communication);
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const Tensor from = received.slice(0, rank * each + at.begin, rank * each + at.end);
      rank == 0 ? codec_.decode(from, sum, stream) : codec_.decode_add(from, sum, stream);
    }
    ops::blend(sum, {}, {.guard = guard}, stream);
    const Tensor workspace =
        bytes(static_cast<std::int64_t>(codec_.workspace_bytes(chunk.count())));
    codec_.encode({.x = sum,
                   .residual = books[i].server,
                   .bytes = encoded.slice(0, at.begin, at.end),
                   .bad = bad,
                   .workspace = workspace},
                  stream);
  });
  return encoded;
}

void JointSum::sum(std::span<const Tensor> tensors, std::span<const Books> books,
                   const Tensor& guard, Stream& stream) const {
  HEDDLE_CHECK(tensors.size() == chunks_.tensors() && books.size() == chunks_.tensors(),
               "{} tensors and {} books for {}", tensors.size(), books.size(), chunks_.tensors());
  if (tensors.empty()) return;
  // What is not finite decodes to zeros; whoever cares looks at the norm (guard).
  const Tensor bad = memory_.zeros({1}, DType::i64, MemoryTag::communication);
  std::vector<std::int64_t> sent_rows, received_rows;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    sent_rows.push_back(chunks_.chunk_bytes(rank));
    received_rows.push_back(chunks_.chunk_bytes(ranks_.rank()));
  }
  Tensor sent = encode_all(tensors, books, bad, stream);
  Tensor received = bytes(chunks_.chunk_bytes(ranks_.rank()) * ranks_.size());
  ranks_.all_to_all(sent, received, sent_rows, received_rows, stream).wait(stream);
  sent = {};
  const Tensor encoded = add_up(std::exchange(received, {}), books, bad, guard, stream);
  const Tensor all = bytes(chunks_.gathered_bytes());
  ranks_.all_gather(encoded, all, stream).wait(stream);
  const std::int64_t each = chunks_.chunk_bytes(0);
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    for_chunks(rank, [&](std::size_t i, JointChunks::Range chunk, JointChunks::Range at) {
      codec_.decode(all.slice(0, rank * each + at.begin, rank * each + at.end),
                    tensors[i].slice(0, chunk.begin, chunk.end), stream);
    });
  }
}

}  // namespace heddle
