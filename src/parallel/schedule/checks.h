#pragma once

#include "parallel/schedule/schedule.h"

/// The two halves of `validate`.
namespace heddle {

/// What is wrong with the list of one rank, whatever the others do.
void check_order(const Schedule& lowered, int rank, std::vector<Diagnostic>& found);

/// What is wrong between the ranks: messages and collectives that do not match, deadlocks.
void check_communication(const Schedule& lowered, std::vector<Diagnostic>& found);

/// The stage that a send goes to or a receive comes from.
constexpr int other_stage(const Action& action) {
  const bool is_above = action.act == Act::send_act || action.act == Act::recv_grad;
  return is_above ? action.stage + 1 : action.stage - 1;
}
constexpr bool is_send(Act act) { return act == Act::send_act || act == Act::send_grad; }
constexpr bool is_receive(Act act) { return act == Act::recv_act || act == Act::recv_grad; }

}  // namespace heddle
