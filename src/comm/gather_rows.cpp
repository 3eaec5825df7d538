#include "comm/gather_rows.h"

#include <numeric>
#include <vector>

#include "tensor/transfer.h"

namespace heddle {

Tensor gather_rows(const Tensor& own, std::span<const std::int64_t> rows_by_rank,
                   Communicator& comm, Memory& memory, Stream& stream) {
  if (comm.size() == 1) return own;
  const auto rank = static_cast<std::size_t>(comm.rank());
  const std::int64_t count = own.size(0);
  std::vector<std::int64_t> given(rows_by_rank.size(), count),
      taken(rows_by_rank.begin(), rows_by_rank.end());
  given[rank] = taken[rank] = 0;
  const auto with_rows = [&](std::int64_t rows) {
    Shape shape = own.shape();
    shape.set(0, rows);
    return memory.alloc(shape, own.dtype(), MemoryTag::workspace);
  };
  const std::int64_t others = std::accumulate(taken.begin(), taken.end(), std::int64_t{0});
  const Tensor copies = with_rows(count * (comm.size() - 1)), received = with_rows(others);
  for (int copy = 0; copy + 1 < comm.size(); ++copy) {
    transfer(own, copies.slice(0, copy * count, (copy + 1) * count), stream);
  }
  comm.all_to_all(copies, received, given, taken, stream).wait(stream);
  const std::int64_t before =
      std::accumulate(taken.begin(), taken.begin() + comm.rank(), std::int64_t{0});
  Tensor all = with_rows(others + count);
  transfer(received.slice(0, 0, before), all.slice(0, 0, before), stream);
  transfer(own, all.slice(0, before, before + count), stream);
  transfer(received.slice(0, before, others), all.slice(0, before + count, others + count), stream);
  return all;
}

}  // namespace heddle
