#include "model/blocks/branch_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace heddle {

std::unique_ptr<BranchKind> attention_kind();
std::unique_ptr<BranchKind> dense_kind();
std::unique_ptr<BranchKind> experts_kind();

namespace {

using Kinds = std::map<std::string, std::unique_ptr<BranchKind>>;

Kinds& kinds() {
  static Kinds all = [] {
    Kinds kinds;
    kinds["attention"] = attention_kind();
    kinds["dense"] = dense_kind();
    kinds["experts"] = experts_kind();
    return kinds;
  }();
  return all;
}

}  // namespace

const BranchKind& branch_kind(const std::string& name) {
  const auto found = kinds().find(name);
  if (found == kinds().end()) {
    std::string known;
    for (const auto& [other, kind] : kinds()) known += (known.empty() ? "" : ", ") + other;
    throw Error(ErrorCode::data, fmt::format("there is no kind of branch called {}", name),
                "use one of " + known);
  }
  return *found->second;
}

void add_branch_kind(const std::string& name, std::unique_ptr<BranchKind> kind) {
  kinds()[name] = std::move(kind);
}

std::vector<std::string> refuse_tp(const ModelSpec& spec, const ParallelRequest& request) {
  std::vector<std::string> reasons;
  for (const BlockSpec& block : spec.blocks) {
    for (const std::string& branch : block.branches) {
      const std::string reason = branch_kind(branch).refuse_tp(spec, request);
      if (reason.empty() || std::ranges::find(reasons, reason) != reasons.end()) continue;
      reasons.push_back(reason);
    }
  }
  return reasons;
}

}  // namespace heddle
