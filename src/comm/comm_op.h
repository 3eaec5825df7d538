#pragma once

#include <cstdint>
#include <string_view>

namespace heddle {

enum class CommOp : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  send,
  recv,
  barrier,
  split  ///< recorded, not counted
};
inline constexpr int kCommOps = 8;  ///< those that are counted
std::string_view name_of(CommOp op);
inline bool is_point_to_point(CommOp op) { return op == CommOp::send || op == CommOp::recv; }

}  // namespace heddle
