#include "ops/embedding.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/embedding.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE void add_to(const T* from, T* to, std::int64_t n) {
  for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i);
  });
}

void embedding_add(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD,
                   Stream& stream) {
  visit_float(y_TD.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int32_t* const ids = ids_T.data<std::int32_t>();
    const T* const table = table_VD.data<T>();
    T* const y = y_TD.data<T>();
    const std::int64_t n = y_TD.size(1), from = table_VD.stride(0), to = y_TD.stride(0);
    parallel_for(stream, ids_T.count(), kGrain / std::max<std::int64_t>(n, 1) + 1,
                 [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
                   for (std::int64_t t = begin; t < end; ++t) {
                     if (ids[t] == kAbsentRow) continue;
                     add_to(table + ids[t] * from, y + t * to, n);
                   }
                 });
  });
}

// Every thread owns columns and walks all tokens in order: two tokens may share a row.
void embedding_backward(const Tensor& ids_T, const Tensor& dy_TD, const Tensor& dtable_VD,
                        Stream& stream) {
  visit_float(dy_TD.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    constexpr std::int64_t kColumns = 64;
    const std::int32_t* const ids = ids_T.data<std::int32_t>();
    const T* const dy = dy_TD.data<T>();
    T* const dtable = dtable_VD.data<T>();
    const std::int64_t n = dy_TD.size(1), from = dy_TD.stride(0), to = dtable_VD.stride(0);
    const std::int64_t tokens = ids_T.count();
    const std::int64_t grain = kGrain / (kColumns * std::max<std::int64_t>(tokens, 1)) + 1;
    parallel_for(stream, (n + kColumns - 1) / kColumns, grain,
                 [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
                   const std::int64_t first = begin * kColumns;
                   const std::int64_t width = std::min(end * kColumns, n) - first;
                   for (std::int64_t t = 0; t < tokens; ++t) {
                     if (ids[t] == kAbsentRow) continue;
                     add_to(dy + t * from + first, dtable + ids[t] * to + first, width);
                   }
                 });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
namespace {

HWY_EXPORT(embedding_add);
HWY_EXPORT(embedding_backward);

void check_ids(const Tensor& ids_T, std::int64_t rows) {
  for (const std::int32_t id : ids_T.host<std::int32_t>()) {
    HEDDLE_CHECK(id == kAbsentRow || (id >= 0 && id < rows), "id {} in a table of {} rows", id,
                 rows);
  }
}

}  // namespace

void embedding_forward(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD,
                       Stream& stream) {
  check_ids(ids_T, table_VD.size(0));
  const std::int32_t* const ids = ids_T.data<std::int32_t>();
  const auto element = static_cast<std::int64_t>(size_of(y_TD.dtype()));
  const std::int64_t n = y_TD.size(1) * element;
  const std::int64_t from = table_VD.stride(0) * element, to = y_TD.stride(0) * element;
  const std::byte* const table = table_VD.bytes();
  std::byte* const y = y_TD.bytes();
  parallel_for(stream, ids_T.count(), kGrain / std::max<std::int64_t>(y_TD.size(1), 1) + 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   if (ids[t] == kAbsentRow) {
                     std::memset(y + t * to, 0, static_cast<std::size_t>(n));
                     continue;
                   }
                   std::memcpy(y + t * to, table + ids[t] * from, static_cast<std::size_t>(n));
                 }
               });
}

void embedding_add(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD,
                   Stream& stream) {
  check_ids(ids_T, table_VD.size(0));
  HEDDLE_DISPATCH(embedding_add, y_TD.dtype())(ids_T, table_VD, y_TD, stream);
}

void embedding_backward(const Tensor& ids_T, const Tensor& dy_TD, const Tensor& dtable_VD,
                        Stream& stream) {
  check_ids(ids_T, dtable_VD.size(0));
  HEDDLE_DISPATCH(embedding_backward, dy_TD.dtype())(ids_T, dy_TD, dtable_VD, stream);
}

void held_rows(const Tensor& ids_T, std::int64_t first, std::int64_t held, const Tensor& rows_T,
               Stream&) {
  std::ranges::transform(ids_T.host<std::int32_t>(), rows_T.host<std::int32_t>().begin(),
                         [=](std::int32_t id) {
                           const std::int64_t row = id - first;
                           const bool is_held = row >= 0 && row < held;
                           return is_held ? static_cast<std::int32_t>(row) : kAbsentRow;
                         });
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
