#include "parallel/schedule/draw.h"

#include <algorithm>

namespace heddle {
namespace {

std::optional<observe::TimelineKind> kind_of(Act act) {
  using observe::TimelineKind;
  switch (act) {
    case Act::f: return TimelineKind::forward;
    case Act::b:
    case Act::bw: return TimelineKind::backward;
    case Act::w: return TimelineKind::weights;
    case Act::vocab_s:
    case Act::vocab_t:
    case Act::embed_f:
    case Act::embed_b: return TimelineKind::vocabulary;
    case Act::recv_act:
    case Act::recv_grad:
    case Act::end: return TimelineKind::wait;
    case Act::send_act:
    case Act::send_grad:
    case Act::begin:
    case Act::reduce_grads: return TimelineKind::communication;
    case Act::step: return TimelineKind::weights;
  }
  return std::nullopt;
}

}  // namespace

std::optional<observe::TimelineBar> timeline_bar(const Schedule& schedule, int rank,
                                                 const Action& action, double begin, double end) {
  const auto kind = kind_of(action.act);
  if (!kind || end <= begin) return std::nullopt;
  const auto stages = stages_of(schedule, rank);
  const auto stage = std::ranges::find(stages, action.stage);
  return observe::TimelineBar{.rank = rank,
                              .label = to_text(action),
                              .kind = *kind,
                              .begin = begin,
                              .end = end,
                              .part = is_vocabulary(action.act) || stage == stages.end()
                                          ? 0
                                          : static_cast<int>(stage - stages.begin())};
}

}  // namespace heddle
