#pragma once

#include "parallel/schedule/schedule.h"

/// The parts of `validate`.
namespace heddle {

/// What is wrong with the routes; the other checks may then not be made.
void check_routes(const Schedule& schedule, std::vector<Diagnostic>& found);

/// What is wrong with the list of one rank, whatever the others do.
void check_order(const Schedule& lowered, int rank, std::vector<Diagnostic>& found);

/// What is wrong between the ranks: messages and collectives that do not match, deadlocks.
void check_communication(const Schedule& lowered, std::vector<Diagnostic>& found);

/// The stage that a send goes to or a receive comes from; -1: none.
inline int other_stage(const Schedule& schedule, const Action& action) {
  const bool is_above = action.act == Act::send_act || action.act == Act::recv_grad;
  return is_above ? schedule.behind(action.stage, action.microbatch)
                  : schedule.before(action.stage, action.microbatch);
}
constexpr bool is_send(Act act) { return act == Act::send_act || act == Act::send_grad; }
constexpr bool is_receive(Act act) { return act == Act::recv_act || act == Act::recv_grad; }

}  // namespace heddle
