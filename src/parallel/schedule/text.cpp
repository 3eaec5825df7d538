#include <fmt/core.h>

#include "parallel/schedule/schedule.h"

namespace heddle {
namespace {

const char* symbol(Act act) {
  switch (act) {
    case Act::f: return "F";
    case Act::b: return "B";
    case Act::w: return "W";
    case Act::bw: return "BW";
    case Act::send_act: return "sa";
    case Act::recv_act: return "ra";
    case Act::send_grad: return "sg";
    case Act::recv_grad: return "rg";
    case Act::reduce_grads: return "reduce";
    case Act::step: return "step";
  }
  return "?";
}

}  // namespace

std::string to_text(const Action& action) {
  const bool is_for_all = action.act == Act::reduce_grads || action.act == Act::step;
  return is_for_all ? symbol(action.act) : symbol(action.act) + std::to_string(action.microbatch);
}

std::string to_text(const Schedule& schedule) {
  const bool names_stages = schedule.stages() > schedule.ranks();
  std::string text;
  for (const auto& actions : schedule.by_rank) {
    std::string line;
    for (const Action& action : actions) {
      if (!line.empty()) line += " ";
      line += to_text(action);
      const bool is_for_all = action.act == Act::reduce_grads || action.act == Act::step;
      if (names_stages && !is_for_all) line += fmt::format("s{}", action.stage);
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace heddle
