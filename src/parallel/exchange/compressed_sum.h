#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "codec/codec.h"
#include "comm/communicator.h"
#include "tensor/memory.h"

namespace heddle {

/// What an encoding loses, and whether it could encode everything (codec::Encoding).
struct EncodingBooks {
  Tensor residual = {};  ///< f32, of what is encoded; absent: what is lost is forgotten
  Tensor bad;            ///< i64 [1]
};

/// Sums of f32 tensors over the ranks of a group, of which only a codec's bytes travel
/// (docs/design/035-compressed-exchanges.md). Each rank adds up one part of N, in the order of
/// ranks: a sum has the errors of one or two encodings, whatever N is, and the same bits on all
/// ranks. Tensors have a multiple of N values. All ranks make the same calls in the same order.
class CompressedSum {
 public:
  /// `ranks` and `memory` outlive it. It outlives its sums, unless a rank is lost: what of one is
  /// then still to be done in the background comes to nothing, whenever that is. `value_bytes`: of
  /// a value that is summed, for counts: tensors of a lower precision are cast before.
  CompressedSum(std::shared_ptr<const codec::Codec> codec, Communicator& ranks, Memory& memory,
                std::int64_t value_bytes = 4);

  /// A sum that was begun. Its tensors must not be touched before end().
  class [[nodiscard]] Pending {
   public:
    /// The result is there for what comes behind on the stream.
    void end(Stream& stream) const;

   private:
    friend class CompressedSum;
    std::shared_ptr<const codec::Codec> codec_;
    std::vector<Work> works_;
    std::vector<Tensor> used_;  // by what runs on another stream until these have ended
    Tensor bytes_;              // of N pieces
    std::size_t pieces_ = 0;
    std::vector<Tensor> to_;  // where each piece is decoded to; one place: they are added
  };

  /// shard = this rank's part of the sum of `whole`, which may change once this returns. Loses what
  /// one encoding does.
  Pending scatter(const Tensor& whole, const Tensor& shard, const EncodingBooks& books,
                  Stream& stream) const;
  /// whole = the sum of `whole`. `of_part` are the books of this rank's part of the sum, which is
  /// encoded once more, by whichever thread or stream the communicator runs on. Not for a lossless
  /// codec, whose number of bytes has to be agreed upon in between.
  Pending sum(const Tensor& whole, const EncodingBooks& books, const EncodingBooks& of_part,
              Stream& stream) const;

 private:
  struct Dealt {
    Work work;
    Tensor sent, received;
  };
  /// Of one of N pieces.
  std::int64_t piece_bytes(std::int64_t values) const;
  Tensor alloc(std::int64_t bytes) const;
  /// Encodes `whole` and exchanges its pieces: everybody's piece of this rank's part.
  Dealt deal_out(const Tensor& whole, const EncodingBooks& books, Stream& stream) const;

  const std::shared_ptr<const codec::Codec> codec_;
  Communicator& ranks_;
  Memory& memory_;
  const std::int64_t value_bytes_;
};

}  // namespace heddle
