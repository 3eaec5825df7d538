#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/blocks/branch_builder.h"
#include "parallel/parallel_request.h"

namespace heddle {

/// A kind of branch that a block adds to the residual: a mixer of tokens or a feed-forward
/// part. A new kind is a file here, its layers, and a line in branch_kind.cpp: what it costs, keeps
/// and sends follows from its layers (Layer::cost, Parameter::layout).
class BranchKind {
 public:
  virtual ~BranchKind() = default;
  /// The branch from the residual and back to it, its norm first.
  virtual Layers build(const BranchBuilder& builder) const = 0;
  /// Why the ranks of tp cannot divide it, to follow "parallel.tp = 3 "; empty: they can.
  virtual std::string refuse_tp(const ModelSpec&, const ParallelRequest&) const { return {}; }
};

/// The kind that a BlockSpec names. Error(data) for a name that no kind has.
const BranchKind& branch_kind(const std::string& name);

/// For kinds that are not part of the program, in tests. Before ranks are started: not thread-safe.
void add_branch_kind(const std::string& name, std::unique_ptr<BranchKind> kind);

/// The reasons of all kinds of the model why the ranks of tp cannot divide it, each once.
std::vector<std::string> refuse_tp(const ModelSpec& spec, const ParallelRequest& request);

}  // namespace heddle
