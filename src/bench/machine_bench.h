#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/stream.h"

namespace heddle {

/// A matrix product as a linear layer makes it: [m, k] x [k, n] for the output, the gradient of the
/// input or that of the weights, which transpose different operands.
struct ProductSample {
  enum class Kind { output, input_gradient, weight_gradient };
  Kind kind = Kind::output;
  double m = 1, n = 1, k = 1;
  double seconds = 0;
};

/// How fast a rank encodes and decodes: bytes of float32 values a second.
struct CodecSamples {
  std::string codec;  ///< with all parameters
  double encode = 0, encode_with_residual = 0, decode = 0;
};

/// What one rank reaches while `ranks` of them do the same on this machine at the same time: on a
/// CPU they share its cores and its memory. Medians of many turns.
struct RankRates {
  int ranks = 1, threads = 1;  ///< threads of each rank
  double product_flops = 0;    ///< of one rank, in the square product that `bench train` also times
  double product_spread = 0;   ///< interquartile range of that over its median
  std::vector<ProductSample> products = {};
  double attention_flops = 0;  ///< per second, forward and backward, masked half not counted
  /// The same by size of heads, ascending; on a GPU.
  std::vector<std::array<double, 2>> attention_by_head = {};
  double block_bytes = 0;        ///< per second, of what lies between a block's products
  double copy_bytes = 0;         ///< per second, read and written, beyond the caches
  double logit_seconds = 0;      ///< of cross entropy with its gradient
  double parameter_seconds = 0;  ///< of clipping and updating
  double kernel_seconds = 0;     ///< of an operation on next to nothing
  double variation = 0;          ///< between ranks that do the same for a quarter of a second
  std::vector<CodecSamples> codecs = {};  ///< all that there are, with usual parameters
};

/// Times of one collective by size, with the mean wait for the slowest rank behind a matrix
/// product.
struct CollectiveSamples {
  CommOp op = CommOp::all_reduce;
  int ranks = 2;
  std::vector<std::array<double, 2>> points = {};  ///< bytes of the whole tensor, seconds
};

/// What travels between `ranks` ranks.
struct LinkRates {
  int ranks = 1;
  std::vector<CollectiveSamples> collectives = {};
  double message_latency = 0;  ///< seconds
  double message_bytes = 0;    ///< per second, of a large message
};

struct MachineBenchOptions {
  DType dtype = DType::f32;
  int rounds = 7;
  /// Called on the first rank after every measurement with how many there were and will be.
  std::function<void(std::uint64_t, std::uint64_t)> progress = {};
};

/// Every rank of `world` calls them at the same time, with a stream of its own on the device; all
/// get the same answer. With the same stream again, a GPU's algorithms are not chosen anew, which
/// takes most of the time.
RankRates measure_rates(World& world, Stream& stream, const MachineBenchOptions& options);
/// Nothing where there is but one rank.
LinkRates measure_links(World& world, Stream& stream, const MachineBenchOptions& options);

}  // namespace heddle
