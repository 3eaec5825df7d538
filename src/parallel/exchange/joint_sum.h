#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/codec.h"
#include "comm/communicator.h"
#include "tensor/memory.h"

namespace heddle {

/// How several tensors are cut for a sum over ranks of which only a codec's bytes travel: each into
/// as many chunks of ceil(values / ranks) as there are ranks (the last ones may be shorter or
/// empty), of which rank r adds up the r-th. Bytes of all tensors travel together, in the order of
/// tensors.
class JointChunks {
 public:
  JointChunks(const codec::Codec& codec, std::vector<std::int64_t> values, int ranks);

  struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t count() const { return end - begin; }
  };
  std::size_t tensors() const { return values_.size(); }
  int ranks() const { return ranks_; }
  std::int64_t values(std::size_t tensor) const { return values_[tensor]; }
  /// Values of a chunk that is not the last of its tensor.
  std::int64_t piece(std::size_t tensor) const { return (values_[tensor] + ranks_ - 1) / ranks_; }
  Range chunk(std::size_t tensor, int rank) const;

  /// Of one rank's chunks of all tensors, and of those of all ranks.
  std::int64_t chunk_bytes(int rank) const;
  std::int64_t dealt_bytes() const;
  /// Everybody sends as much in the second exchange: as much as the first rank, which has most.
  std::int64_t gathered_bytes() const { return ranks_ * chunk_bytes(0); }

 private:
  const codec::Codec& codec_;
  std::vector<std::int64_t> values_;
  int ranks_;
};

/// Sums several f32 tensors over the ranks of a group in two exchanges, whatever their number: an
/// all-to-all of encoded chunks, which are added in the order of ranks, and an all-gather of the
/// sums, encoded once more. Both encodings keep what they lose. All ranks decode the same bytes.
/// A tensor is encoded by one call, so a codec with a scale for the call has one for each tensor,
/// and in the second exchange one for each chunk.
class JointSum {
 public:
  /// `codec`, which is not lossless, and all others outlive it.
  JointSum(const codec::Codec& codec, Communicator& ranks, std::vector<std::int64_t> values,
           Memory& memory);

  const JointChunks& chunks() const { return chunks_; }

  struct Books {
    Tensor worker;  ///< what the first encoding lost, as long as the tensor
    Tensor server;  ///< what the second one lost, of this rank's chunk; may be absent where empty
  };
  /// tensors[i] = the sum of tensors[i]. `guard` (f32, one element): one that is not finite leaves
  /// the books as they are, and the sums are then worth nothing; the caller's tensors have to be
  /// NaN then. Waits for the ranks.
  void sum(std::span<const Tensor> tensors, std::span<const Books> books, const Tensor& guard,
           Stream& stream) const;

 private:
  Tensor bytes(std::int64_t count) const;
  /// The chunks of `rank` that are not empty, tensor after tensor: visit(tensor, its values, its
  /// bytes among those of the rank).
  template <class Visit>
  void for_chunks(int rank, const Visit& visit) const;
  Tensor encode_all(std::span<const Tensor> tensors, std::span<const Books> books,
                    const Tensor& bad, Stream& stream) const;
  Tensor add_up(const Tensor& received, std::span<const Books> books, const Tensor& bad,
                const Tensor& guard, Stream& stream) const;

  const codec::Codec& codec_;
  Communicator& ranks_;
  JointChunks chunks_;
  Memory& memory_;
};

}  // namespace heddle
