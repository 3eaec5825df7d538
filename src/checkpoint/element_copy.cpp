#include "checkpoint/element_copy.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/cast.h"

namespace heddle {

bool can_convert(DType from, DType to) {
  return from == to || (is_floating(from) && is_floating(to));
}

void convert_elements(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype,
                      std::int64_t count) {
  if (from_dtype != to_dtype) return ops::cast_bytes(from, from_dtype, to, to_dtype, count);
  if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * size_of(to_dtype));
}

void copy_box(const std::byte* from, DType from_dtype, const Shape& from_shape,
              std::span<const std::int64_t> from_begin, const Tensor& to,
              std::span<const std::int64_t> to_begin, std::span<const std::int64_t> extent) {
  HEDDLE_CHECK(to.device().kind == Device::Kind::cpu, "copy of file bytes to device memory");
  const int dims = from_shape.dims();
  const auto size_of_dim = [&](int dim) { return extent[static_cast<std::size_t>(dim)]; };
  for (int dim = 0; dim < dims; ++dim) {
    if (size_of_dim(dim) == 0) return;
  }
  std::vector<std::int64_t> from_stride(static_cast<std::size_t>(dims), 1);
  for (int dim = dims - 2; dim >= 0; --dim) {
    const auto d = static_cast<std::size_t>(dim);
    from_stride[d] = from_stride[d + 1] * from_shape[dim + 1];
  }
  std::int64_t from_at = 0, to_at = 0;
  for (int dim = 0; dim < dims; ++dim) {
    const auto d = static_cast<std::size_t>(dim);
    from_at += from_begin[d] * from_stride[d];
    to_at += to_begin[d] * to.stride(dim);
  }
  // Trailing dimensions that are adjacent on both sides are copied as one run.
  int outer = dims;
  std::int64_t run = 1;
  while (outer > 0) {
    const auto d = static_cast<std::size_t>(outer - 1);
    if (extent[d] != 1 && (from_stride[d] != run || to.stride(outer - 1) != run)) break;
    run *= extent[d];
    --outer;
  }
  const auto from_size = static_cast<std::int64_t>(size_of(from_dtype));
  const auto to_size = static_cast<std::int64_t>(size_of(to.dtype()));
  std::vector<std::int64_t> index(static_cast<std::size_t>(outer), 0);
  while (true) {
    convert_elements(from + from_at * from_size, from_dtype, to.bytes() + to_at * to_size,
                     to.dtype(), run);
    int dim = outer - 1;
    for (; dim >= 0; --dim) {
      const auto d = static_cast<std::size_t>(dim);
      from_at += from_stride[d];
      to_at += to.stride(dim);
      if (++index[d] < extent[d]) break;
      from_at -= extent[d] * from_stride[d];
      to_at -= extent[d] * to.stride(dim);
      index[d] = 0;
    }
    if (dim < 0) return;
  }
}

}  // namespace heddle
