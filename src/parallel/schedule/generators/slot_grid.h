#pragma once

#include <map>
#include <optional>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace heddle::generators {

/// A schedule under construction, laid out in time: f, b and w take one slot each, messages none.
/// Only the order of the slots counts in the end.
class SlotGrid {
 public:
  /// Takes placement and micro-batches from `empty`, which has no actions.
  explicit SlotGrid(Schedule empty);

  void put(int slot, const Action& action);
  /// What takes no slot: done by `rank` before the action in `slot`, behind what was put there
  /// earlier.
  void put_before(int rank, int slot, const Action& action);

  /// Puts the w of every b into the first free slot behind it, in the order of the b.
  void put_weights();

  /// Moves what warm-up and cool-down leave late to the earliest free slot behind all that it
  /// needs, with no more than `capacity` forwards of a rank in flight. Weight gradients step aside
  /// for what other ranks wait for once a rank has no forward left, and are taken out in the end:
  /// with_late_weights puts them back.
  void pull_forward(int capacity);

  Schedule in_order() const;

 private:
  using Row = std::vector<std::optional<Action>>;

  int length() const;
  int& slot_of(const Action& action);
  int earliest(const Action& action);
  void take_weights(std::size_t rank, std::size_t from);
  void pull(Act act, int capacity, std::size_t rank, std::size_t slot);
  bool fits(std::size_t rank, Act act, std::size_t from, std::size_t to, int capacity) const;
  void move(std::size_t rank, std::size_t from, std::size_t to);
  void count_in_flight();

  Schedule schedule_;
  std::vector<Row> rows_;                                    // by rank
  std::vector<std::multimap<std::size_t, Action>> between_;  // by rank and slot
  std::vector<int> slots_;                   // by kind, stage and micro-batch; -1: not put
  std::vector<std::vector<int>> in_flight_;  // by rank, behind each slot
};

}  // namespace heddle::generators
