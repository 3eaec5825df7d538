#include "parallel/sequence/piece_tensors.h"

#include <algorithm>

namespace heddle {

PieceTensors allocate_parts(PieceParts parts, std::int64_t tokens, std::int64_t heads,
                            std::int64_t head_dim, DType dtype, Ctx& ctx) {
  const std::int64_t each = tokens * heads * head_dim, statistics = tokens * heads;
  const std::int64_t rows_end = parts.rows * each;
  PieceTensors made;
  const bool is_one = parts.statistics == 0 || dtype == statistics_of(dtype);
  const std::int64_t in_first = rows_end + (is_one ? parts.statistics * statistics : 0);
  made.buffers[0] = ctx.workspace({in_first}, dtype);
  if (!is_one)
    made.buffers[1] = ctx.workspace({parts.statistics * statistics}, statistics_of(dtype));
  for (int i = 0; i < parts.rows; ++i) {
    made.rows[static_cast<std::size_t>(i)] =
        made.buffers[0].slice(0, i * each, (i + 1) * each).view({1, tokens, heads, head_dim});
  }
  const Tensor& in = made.buffers[is_one ? 0 : 1];
  const std::int64_t begin = is_one ? rows_end : 0;
  for (int i = 0; i < parts.statistics; ++i) {
    made.statistics[static_cast<std::size_t>(i)] =
        in.slice(0, begin + i * statistics, begin + (i + 1) * statistics).view({1, heads, tokens});
  }
  return made;
}

PieceTensors part_of(const PieceTensors& whole, std::int64_t first, std::int64_t count,
                     HeadRange heads) {
  PieceTensors part;
  for (std::size_t i = 0; i < whole.rows.size(); ++i) {
    if (!whole.rows[i].defined()) continue;
    part.rows[i] = whole.rows[i]
                       .slice(1, first, first + count)
                       .slice(2, heads.first, heads.first + heads.count);
  }
  for (std::size_t i = 0; i < whole.statistics.size(); ++i) {
    if (!whole.statistics[i].defined()) continue;
    part.statistics[i] = whole.statistics[i]
                             .slice(1, heads.first, heads.first + heads.count)
                             .slice(2, first, first + count);
  }
  if (whole.sums.defined()) {
    const std::int64_t tiles = whole.sums.size(2);
    const std::int64_t tile = whole.sums.size(3) / whole.rows[0].size(3);
    part.sums = whole.sums.slice(1, heads.first, heads.first + heads.count)
                    .slice(2, first / tile, std::min((first + count + tile - 1) / tile, tiles));
  }
  return part;
}

}  // namespace heddle
