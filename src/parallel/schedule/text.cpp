#include <fmt/core.h>

#include "parallel/schedule/schedule.h"

namespace heddle {

const char* symbol(Act act) {
  switch (act) {
    case Act::f: return "F";
    case Act::b: return "B";
    case Act::w: return "W";
    case Act::bw: return "BW";
    case Act::vocab_s: return "S";
    case Act::vocab_t: return "T";
    case Act::embed_f: return "E";
    case Act::embed_b: return "G";
    case Act::begin: return ">";
    case Act::end: return "<";
    case Act::send_act: return "sa";
    case Act::recv_act: return "ra";
    case Act::send_grad: return "sg";
    case Act::recv_grad: return "rg";
    case Act::reduce_grads: return "reduce";
    case Act::step: return "step";
  }
  return "?";
}

namespace {

const char* symbol(Exchange collective) {
  switch (collective) {
    case Exchange::none: return "";
    case Exchange::output: return "c0";
    case Exchange::softmax: return "c1";
    case Exchange::output_grad: return "c2";
    case Exchange::embedding: return "ce";
    case Exchange::embedding_grad: return "cg";
  }
  return "?";
}

}  // namespace

std::string to_text(const Action& action) {
  const bool is_for_all = action.act == Act::reduce_grads || action.act == Act::step;
  if (is_for_all) return symbol(action.act);
  return fmt::format("{}{}{}", symbol(action.collective), symbol(action.act), action.microbatch);
}

std::string to_text(const Action& action, const Schedule& schedule) {
  const bool has_stage =
      is_computation(action.act) ? !is_vocabulary(action.act) : action.act < Act::begin;
  const std::string text = to_text(action);
  if (!has_stage || schedule.stages() <= schedule.ranks()) return text;
  return fmt::format("{}s{}", text, action.stage);
}

std::string to_text(const Schedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.by_rank) {
    std::string line;
    for (const Action& action : actions) {
      if (!line.empty()) line += " ";
      line += to_text(action, schedule);
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace heddle
