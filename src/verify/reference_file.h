#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "comm/world.h"
#include "nn/context.h"
#include "parallel/param_store.h"
#include "tensor/memory.h"
#include "verify/difference.h"

namespace heddle {

/// max() that keeps NaN: a difference that is not a number must never look small.
inline void raise(double& worst, double value) {
  if (!(value <= worst)) worst = value;
}

/// The parameter that differs most: the norm of the difference over the norm of the reference.
struct WorstTensor {
  double rel = 0.0;
  std::string name = {};
};

/// The reference.safetensors of a folder: what PyTorch was given and what it computed.
class ReferenceFile {
 public:
  /// `host` has what is read, and outlives it.
  ReferenceFile(const std::filesystem::path& folder, Memory& host)
      : file_(folder / "reference.safetensors"), host_(host) {}

  Shape shape(const std::string& name) const { return file_.entry(name).shape(); }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  Tensor floats(const std::string& name) const;
  /// Token ids, stored as 64-bit integers, as the i32 we compute with.
  Tensor ids(const std::string& name) const;

  /// Compares every tensor of the reference whose name begins with `prefix`. Each rank of `world`
  /// compares the boxes that it would save; their sums over all ranks are the tensor's.
  WorstTensor compare(const std::string& prefix, const std::vector<ParamPiece>& pieces,
                      World& world, Stream& stream) const;

 private:
  SafetensorsFile file_;
  Memory& host_;
};

/// The micro-batches of one sequence each that replica `replica` of `replicas` has of [B, S] ids
/// and labels. Where it has fewer than others, one whose targets do not count stands in.
std::vector<MicroBatch> by_sequence(const Tensor& input, const Tensor& labels, int replica,
                                    int replicas, Memory& host);

}  // namespace heddle
