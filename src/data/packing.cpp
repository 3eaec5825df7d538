#include "data/packing.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/check.h"

namespace heddle {
namespace {

/// Positions and first keys of row[from, to), which belong to one document.
void mark_document(const WindowRow& row, std::int64_t from, std::int64_t to) {
  for (std::int64_t i = from; i < to; ++i) {
    row.positions[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i - from);
    row.first_key[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(from);
  }
}

/// Leaves the targets, tokens from `begin` on, that are to be learnt.
void keep_answers(const TokenFile& file, std::int64_t begin, std::span<std::int32_t> targets) {
  const auto are_answers = std::make_unique<bool[]>(targets.size());
  file.read_answers(begin, {are_answers.get(), targets.size()});
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!are_answers[i]) targets[i] = kIgnoredTarget;
  }
}

}  // namespace

std::int64_t pack_window(const TokenFile& file, std::int64_t begin, std::int64_t end,
                         DocumentMode mode, const WindowRow& row) {
  const auto seq_len = static_cast<std::int64_t>(row.ids.size());
  HEDDLE_CHECK(begin >= 0 && begin < end && end <= file.token_count(), "window [{}, {}) of {}",
               begin, end, file.token_count());
  const std::int64_t used = std::min(seq_len, end - begin);
  const std::int64_t targets = std::min(seq_len, end - begin - 1);
  file.read(begin, row.ids.first(static_cast<std::size_t>(used)));
  file.read(begin + 1, row.targets.first(static_cast<std::size_t>(targets)));
  std::fill(row.ids.begin() + used, row.ids.end(), 0);
  std::fill(row.targets.begin() + targets, row.targets.end(), kIgnoredTarget);
  const std::span<std::int32_t> real = row.targets.first(static_cast<std::size_t>(targets));
  if (file.has_answers()) keep_answers(file, begin + 1, real);
  const auto counted = [&] {
    return targets - static_cast<std::int64_t>(std::ranges::count(real, kIgnoredTarget));
  };
  mark_document(row, used, seq_len);
  if (mode == DocumentMode::ignore) {
    mark_document(row, 0, used);
    return counted();
  }

  std::int64_t document = file.document_of(begin);
  for (std::int64_t from = 0; from < used;) {
    const std::int64_t next_start = file.document_start(++document) - begin;
    const std::int64_t to = std::min(used, next_start);
    mark_document(row, from, to);
    if (next_start <= targets) {
      row.targets[static_cast<std::size_t>(next_start - 1)] = kIgnoredTarget;
    }
    from = to;
  }
  return counted();
}

}  // namespace heddle
