#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm_op.h"
#include "tensor/dtype.h"

namespace heddle::planner {

/// Units of machine files and of what is shown of them.
inline constexpr double kMib = 1024.0 * 1024.0, kGib = 1024.0 * kMib;

/// How large matrix products run on a device: by tiles that its processors take in waves.
struct GemmModel {
  struct Tile {
    double rows = 128, cols = 128;
    double efficiency = 1.0;  ///< of the best tile's rate
  };
  static constexpr int kMostTiles = 8, kAlignments = 7;

  double efficiency = 1.0;                     ///< of the peak, for deep products of whole waves
  double half_depth = 0.0;                     ///< depth K at which half of it is reached
  double half_rows = 0.0, half_columns = 0.0;  ///< the same of M and N
  double tail = 1.0;     ///< the share of an incomplete last wave's idle processors that is paid
  double batched = 1.0;  ///< of `efficiency`, for many small products (attention)
  int tiles = 0;
  std::array<Tile, kMostTiles> tile{};
  using ByPower = std::array<double, kAlignments>;
  /// Rate by the largest power of two that divides all three dimensions: 1, 2, 4, ... 64. The
  /// inputs of a linear layer, whose rows its weights have too, may cost more than its outputs.
  ByPower alignment{1, 1, 1, 1, 1, 1, 1}, input_alignment{1, 1, 1, 1, 1, 1, 1};
};

struct Device {
  std::string name;
  double memory_bytes = 0.0, memory_bytes_per_s = 0.0;  ///< the rate is what kernels reach
  int processors = 1;
  double kernel_s = 0.0;           ///< fixed time of a kernel on the device
  double host_s = 0.0;             ///< of the host to launch one, in a PyTorch program
  double host_collective_s = 0.0;  ///< of the host to launch a collective
  /// FLOP/s of the matrix units, by dtype; 0: it has none.
  double matrix_f32 = 0.0, matrix_f16 = 0.0, matrix_bf16 = 0.0;
  double vector_f32 = 0.0;
  GemmModel gemm;

  double matrix_rate(DType dtype) const;
};

/// One tier of the network.
struct Link {
  std::string name;
  int reach = 0;             ///< devices that it connects; 0: all
  double bytes_per_s = 0.0;  ///< of one device, one direction
  double latency_s = 0.0;
  double collective = 1.0, message = 1.0;  ///< what of the bandwidth they reach
  /// What of it collectives reach when each has several devices, but not all, of a domain of the
  /// tier below: their rings then share adapters.
  double crowded = 1.0;
  double gather = 1.0;  ///< what of it the gathers of single parameters (ZeRO-3) reach
  /// Collectives are no rings: every rank sends to every other at once, so that latency counts once
  /// and not for every rank (comm/tcp).
  bool is_direct = false;
  /// Over direct links: what each message of an exchange costs beside its bytes, where adapters or
  /// the system take so many a second.
  double message_s = 0.0;
};

/// Measured times of one collective among `ranks` devices of the innermost tier.
struct CollectiveTable {
  CommOp op = CommOp::all_reduce;
  int ranks = 0;
  std::vector<std::array<double, 2>> points;  ///< bytes of the whole tensor, seconds; ascending
};

/// How fast a device encodes and decodes, in bytes of float32 values per second.
struct CodecRate {
  std::string codec;  ///< with all parameters: "int8:128"
  double encode = 0, encode_with_residual = 0, decode = 0;
};

/// What a step costs beside its layers.
struct Software {
  double step_s = 0.0;           ///< host's work around an optimizer step
  double optimizer_bytes = 0.0;  ///< memory traffic of clipping and updating, per parameter
  double variation = 0.0;        ///< of a micro-batch's time, relative standard deviation
  double fused_attention = 1.0;  ///< of the matrix rate that attention without stored scores has
  /// The same by size of heads, ascending, where it was measured.
  std::vector<std::array<double, 2>> attention_by_head = {};
  double reserved_bytes = 0.0;  ///< of device memory: context, communicators, workspaces
  double loss_bytes = 24.0;     ///< memory traffic of softmax and loss with gradient, per logit
  /// What of a collective's time under computation is lost all the same: it takes processors and
  /// memory bandwidth; all of it where the processors are those that compute.
  double contention = 0.1;
};

/// Of the matrix rate, what attention without stored scores reaches with heads of this size:
/// between those that were measured by a line, beyond them as the nearest.
double attention_efficiency(const Software& software, double head_dim);

/// The device as each rank has it while this many of a server are at work: ranks that share the
/// cores and the memory of one machine have less each.
struct SharedDevice {
  int ranks = 2;
  Device device;
  Software software;
  std::vector<CodecRate> codecs = {};  ///< none: as one rank alone has them
};

/// A cluster of equal devices, and all constants of the cost model.
struct Machine {
  std::string name;
  Device device;
  std::vector<Link> links;  ///< from the inside out; at least one, the last reaches all
  std::vector<CollectiveTable> collectives;
  std::vector<CodecRate> codecs;  ///< those that were measured
  Software software;
  /// Measured bandwidth between every two servers, bytes/s; empty: not measured.
  std::vector<std::vector<double>> pairs;
  std::vector<SharedDevice> shared;  ///< by ranks, ascending; empty: ranks have nothing in common

  /// The machine as a run of so many ranks finds it: the smallest entry of `shared` that has room
  /// for those of a server; beyond the last one ranks divide what it has. `shared` is empty then.
  Machine at_work(int ranks) const;

  /// Devices of the innermost tier.
  int server_size() const { return links.front().reach; }
};

/// Reads a machine file (docs/design/011-planner.md). Error(usage) names the key, what is wrong
/// with it, and what to write: missing sections and keys, unknown keys, zero or impossible numbers
/// (a bandwidth of 3e11 GB/s was meant in bytes), tiers that do not grow.
Machine parse_machine(std::string_view text, const std::string& name);
Machine read_machine(const std::filesystem::path& file);

}  // namespace heddle::planner
