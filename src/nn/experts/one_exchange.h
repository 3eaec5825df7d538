#pragma once

#include "comm/communicator.h"
#include "nn/context.h"
#include "nn/decoded_rows.h"
#include "nn/experts/router.h"

namespace heddle {

/// Rows where their experts are, sorted by expert.
struct StayedRows {
  Tensor x_ND;
  Tensor offsets_O1;           ///< where those of each own expert begin
  Tensor weights_N1, each_N1;  ///< of the expert; 0, 1, ...
};

/// One all-to-all takes rows to the ranks of ep that have their experts, and there they stay:
/// DecodedRows::places says where. Rows whose expert is here are not sent. Before, ranks tell each
/// other what their routers chose. One expert a row; tensors in host memory.
StayedRows stay_with_experts(const Tensor& x_TD, const Routing& routing, std::int64_t experts,
                             Communicator& ep, DecodedRows& rows, Ctx& ctx);

}  // namespace heddle
