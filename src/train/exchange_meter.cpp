#include "train/exchange_meter.h"

#include <algorithm>
#include <array>

#include "comm/agree.h"
#include "mesh/axis.h"

namespace heddle {

void ExchangeMeter::add(const CommCall& call) {
  const bool is_of_experts =
      call.group_name == name_of(Axis::ep) || call.group_name == name_of(Axis::etp);
  if (!is_of_experts) return;
  const auto seconds = [&](CommCall::Clock::time_point since) {
    return std::chrono::duration<double>(call.ended - since).count();
  };
  // One that is waited for may still stand behind another.
  const double exposed = call.is_waited_for ? seconds(call.waited) : 0.0;
  const std::lock_guard lock(mutex_);
  sum_.exposed += exposed;
  sum_.hidden += std::max(0.0, seconds(call.started) - exposed);
}

void ExchangeMeter::end_step() {
  const std::lock_guard lock(mutex_);
  if (++steps_ == 1) first_ = sum_;
}

std::vector<observe::ExpertExchangeRow> ExchangeMeter::gather(World& world) {
  std::array<double, 2> own{};
  {
    const std::lock_guard lock(mutex_);
    const Seconds before = steps_ > 1 ? first_ : Seconds{};
    const double steps = std::max(1, steps_ > 1 ? steps_ - 1 : steps_);
    own = {(sum_.exposed - before.exposed) / steps, (sum_.hidden - before.hidden) / steps};
  }
  const std::vector<double> all = numbers_of_all(world, own);
  std::vector<observe::ExpertExchangeRow> rows;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto at = static_cast<std::size_t>(2 * rank);
    rows.push_back({.rank = rank, .exposed = all[at], .hidden = all[at + 1]});
  }
  return rows;
}

}  // namespace heddle
