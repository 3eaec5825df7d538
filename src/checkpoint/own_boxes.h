#pragma once

#include <string>
#include <vector>

#include "checkpoint/layout.h"
#include "parallel/param_store.h"

namespace heddle {

/// What a rank holds of one kind of state (state_source.h).
struct StateKind {
  std::string kind;
  std::vector<ParamPiece> pieces;
};

/// A box of a tensor that one rank writes to a checkpoint.
struct KeptBox {
  std::string kind, name;
  Shape begin;  ///< in the whole tensor
  Tensor data;  ///< where it lies, in any memory; the file may have another dtype
};

/// The boxes that this rank writes, none larger than `max_elements`. Over all ranks every element
/// is in one box; ranks that hold the same divide it evenly.
std::vector<KeptBox> own_boxes(const std::vector<StateKind>& states, std::int64_t max_elements);

/// The tensors that this rank names for all: over all ranks, every one is named once.
std::vector<KeptTensor> named_here(const std::vector<StateKind>& states);

}  // namespace heddle
