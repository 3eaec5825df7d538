#include "parallel/schedule/generators/slot_grid.h"

#include <algorithm>
#include <deque>

#include "base/check.h"

namespace heddle::generators {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

SlotGrid::SlotGrid(Schedule empty)
    : schedule_(std::move(empty)),
      rows_(at(schedule_.ranks())),
      between_(at(schedule_.ranks())),
      slots_(3 * at(schedule_.stages()) * at(schedule_.microbatches), -1) {}

int SlotGrid::length() const {
  std::size_t longest = 0;
  for (const Row& row : rows_) longest = std::max(longest, row.size());
  return static_cast<int>(longest);
}

int& SlotGrid::slot_of(const Action& action) {
  const int kind = action.act == Act::f ? 0 : action.act == Act::b ? 1 : 2;
  const int stage = kind * schedule_.stages() + action.stage;
  return slots_[at(stage) * at(schedule_.microbatches) + at(action.microbatch)];
}

void SlotGrid::put(int slot, const Action& action) {
  Row& row = rows_[at(schedule_.rank_of(action.stage))];
  if (row.size() <= at(slot)) row.resize(at(slot) + 1);
  HEDDLE_CHECK(!row[at(slot)], "two actions in slot {}", slot);
  row[at(slot)] = action;
  slot_of(action) = slot;
}

void SlotGrid::put_before(int rank, int slot, const Action& action) {
  between_[at(rank)].emplace(at(slot), action);
}

void SlotGrid::put_weights() {
  for (Row& row : rows_) {
    std::deque<Action> waiting;
    for (int slot = 0; at(slot) < row.size() || !waiting.empty(); ++slot) {
      if (at(slot) < row.size() && row[at(slot)]) {
        Action action = *row[at(slot)];
        if (action.act != Act::b) continue;
        action.act = Act::w;
        waiting.push_back(action);
      } else if (!waiting.empty()) {
        put(slot, waiting.front());
        waiting.pop_front();
      }
    }
  }
}

void SlotGrid::take_weights(std::size_t rank, std::size_t from) {
  Row& row = rows_[rank];
  for (std::size_t slot = from; slot < row.size(); ++slot) {
    if (row[slot] && row[slot]->act == Act::w) row[slot].reset();
  }
}

int SlotGrid::earliest(const Action& action) {
  int slot = 0;
  const auto after = [&](Act act, int stage, int mb) {
    if (stage < 0 || stage >= schedule_.stages() || mb < 0) return;
    slot = std::max(slot, slot_of({act, stage, mb}) + 1);
  };
  const Act act = action.act;
  const int stage = action.stage, mb = action.microbatch;
  after(act, stage, mb - 1);
  if (act == Act::f) after(Act::f, stage - 1, mb);
  if (act == Act::b) {
    after(Act::f, stage, mb);
    after(Act::b, stage + 1, mb);
  }
  if (act == Act::w) after(Act::b, stage, mb);
  return slot;
}

void SlotGrid::count_in_flight() {
  in_flight_.clear();
  for (const Row& row : rows_) {
    std::vector<int> counts;
    int now = 0;
    for (const auto& action : row) {
      if (action && action->act == Act::f) ++now;
      if (action && action->act == Act::w) --now;
      counts.push_back(now);
    }
    in_flight_.push_back(std::move(counts));
  }
}

bool SlotGrid::fits(std::size_t rank, Act act, std::size_t from, std::size_t to,
                    int capacity) const {
  if (act != Act::f) return true;
  const auto& counts = in_flight_[rank];
  return std::all_of(counts.begin() + static_cast<std::ptrdiff_t>(to),
                     counts.begin() + static_cast<std::ptrdiff_t>(from),
                     [=](int count) { return count < capacity; });
}

void SlotGrid::move(std::size_t rank, std::size_t from, std::size_t to) {
  Row& row = rows_[rank];
  std::swap(row[from], row[to]);
  slot_of(*row[to]) = static_cast<int>(to);
  const int change = row[to]->act == Act::f ? 1 : row[to]->act == Act::w ? -1 : 0;
  for (std::size_t slot = to; slot < from; ++slot) in_flight_[rank][slot] += change;
}

void SlotGrid::pull(Act act, int capacity, std::size_t rank, std::size_t slot) {
  Row& row = rows_[rank];
  if (slot >= row.size() || !row[slot] || row[slot]->act != act) return;
  for (std::size_t to = at(earliest(*row[slot])); to < slot; ++to) {
    if (row[to] || !fits(rank, act, slot, to, capacity)) continue;
    return move(rank, slot, to);
  }
}

void SlotGrid::pull_forward(int capacity) {
  count_in_flight();
  const auto pull_all = [&](std::initializer_list<Act> acts) {
    for (int slot = 0; slot < length(); ++slot) {
      for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
        for (const Act act : acts) pull(act, capacity, rank, at(slot));
      }
    }
  };
  pull_all({Act::f, Act::b, Act::w});
  for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
    const Row& row = rows_[rank];
    std::size_t last_forward = row.size();
    while (!row[last_forward - 1] || row[last_forward - 1]->act != Act::f) --last_forward;
    take_weights(rank, last_forward);
  }
  pull_all({Act::b});
  for (std::size_t rank = 0; rank < rows_.size(); ++rank) take_weights(rank, 0);
}

Schedule SlotGrid::in_order() const {
  Schedule schedule = schedule_;
  for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
    auto& out = schedule.by_rank[rank];
    auto next = between_[rank].begin();
    for (std::size_t slot = 0; slot < rows_[rank].size(); ++slot) {
      for (; next != between_[rank].end() && next->first <= slot; ++next) {
        out.push_back(next->second);
      }
      if (rows_[rank][slot]) out.push_back(*rows_[rank][slot]);
    }
    for (; next != between_[rank].end(); ++next) out.push_back(next->second);
  }
  return schedule;
}

}  // namespace heddle::generators
