#include "comm/mpi/mpi_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/error.h"
#include "comm/group_id.h"

namespace heddle {
namespace {

/// MPI counts elements with an int.
constexpr std::int64_t kMostElements = std::int64_t{1} << 30;
/// Elements of 16-bit floats that are widened at a time, over all ranks.
constexpr std::int64_t kWideElements = std::int64_t{1} << 18;

int int_count(std::int64_t count) {
  HEDDLE_CHECK(count <= std::numeric_limits<int>::max(),
               "{} elements are too many for one MPI call", count);
  return static_cast<int>(count);
}

HeddleMpiType type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return heddle_mpi_f32;
    case DType::f64: return heddle_mpi_f64;
    case DType::i32: return heddle_mpi_i32;
    case DType::i64: return heddle_mpi_i64;
    default: HEDDLE_CHECK(false, "{} cannot be reduced", name_of(dtype));
  }
  return heddle_mpi_f32;
}

HeddleMpiOp op_of(ReduceOp op) { return op == ReduceOp::sum ? heddle_mpi_sum : heddle_mpi_max; }

bool is_narrow(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

void widen(const Tensor& from, std::int64_t begin, std::int64_t count, float* to) {
  if (from.dtype() == DType::bf16) {
    const BFloat16* const x = from.data<BFloat16>() + begin;
    for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(x[i]);
  } else {
    const Float16* const x = from.data<Float16>() + begin;
    for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(x[i]);
  }
}

void narrow(const float* from, std::int64_t count, const Tensor& to, std::int64_t begin) {
  if (to.dtype() == DType::bf16) {
    BFloat16* const y = to.data<BFloat16>() + begin;
    for (std::int64_t i = 0; i < count; ++i) y[i] = to_bfloat16(from[i]);
  } else {
    Float16* const y = to.data<Float16>() + begin;
    for (std::int64_t i = 0; i < count; ++i) y[i] = to_float16(from[i]);
  }
}

}  // namespace

MpiBackend::MpiBackend(int rank, std::shared_ptr<const Group> group, HeddleMpiComm comm,
                       std::shared_ptr<MpiSession> session)
    : CommBackend(rank, std::move(group)), comm_(comm), session_(std::move(session)) {}

void MpiBackend::run(const Collective& call) {
  session_->failure->check();
  switch (call.op) {
    case CommOp::all_reduce: return all_reduce(call);
    case CommOp::all_gather: return all_gather(call);
    case CommOp::reduce_scatter: return reduce_scatter(call);
    case CommOp::all_to_all: return all_to_all(call);
    case CommOp::broadcast: return broadcast(call);
    case CommOp::barrier:
      return check_mpi(session_->mpi, session_->mpi.barrier(comm_), "MPI_Barrier");
    default: HEDDLE_CHECK(false, "{} is not a collective on tensors", name_of(call.op));
  }
}

void MpiBackend::all_reduce(const Collective& call) {
  const Tensor& data = call.out;
  if (is_narrow(data.dtype())) return all_reduce_wide(call);
  const HeddleMpiType type = type_of(data.dtype());
  for (std::int64_t begin = 0; begin < data.count(); begin += kMostElements) {
    const std::int64_t count = std::min(kMostElements, data.count() - begin);
    std::byte* const part = data.bytes() + static_cast<std::size_t>(begin) * size_of(data.dtype());
    check_mpi(session_->mpi,
              session_->mpi.all_reduce(comm_, part, int_count(count), type, op_of(call.reduce)),
              "MPI_Allreduce");
  }
}

void MpiBackend::all_reduce_wide(const Collective& call) {
  const Tensor& data = call.out;
  std::vector<float> wide(static_cast<std::size_t>(std::min(kWideElements, data.count())));
  for (std::int64_t begin = 0; begin < data.count(); begin += kWideElements) {
    const std::int64_t count = std::min(kWideElements, data.count() - begin);
    widen(data, begin, count, wide.data());
    check_mpi(session_->mpi,
              session_->mpi.all_reduce(comm_, wide.data(), int_count(count), heddle_mpi_f32,
                                       op_of(call.reduce)),
              "MPI_Allreduce");
    narrow(wide.data(), count, data, begin);
  }
}

void MpiBackend::all_gather(const Collective& call) {
  const std::size_t own = call.in.size_bytes() * static_cast<std::size_t>(rank());
  const bool in_place = call.in.bytes() == call.out.bytes() + own;
  check_mpi(session_->mpi,
            session_->mpi.all_gather(comm_, in_place ? nullptr : call.in.bytes(), call.out.bytes(),
                                     int_count(call.in.count()),
                                     static_cast<int>(size_of(call.in.dtype()))),
            "MPI_Allgather");
}

void MpiBackend::reduce_scatter(const Collective& call) {
  if (is_narrow(call.in.dtype())) return reduce_scatter_wide(call);
  // MPI does not allow a result inside its input, other than at the beginning.
  const std::byte* const begin = call.in.bytes();
  const bool overlaps =
      call.out.bytes() >= begin && call.out.bytes() < begin + call.in.size_bytes();
  if (overlaps) scratch_.resize(std::max(scratch_.size(), call.out.size_bytes()));
  std::byte* const out = overlaps ? scratch_.data() : call.out.bytes();
  check_mpi(session_->mpi,
            session_->mpi.reduce_scatter(comm_, begin, out, int_count(call.out.count()),
                                         type_of(call.in.dtype()), op_of(call.reduce)),
            "MPI_Reduce_scatter_block");
  if (overlaps) std::memcpy(call.out.bytes(), out, call.out.size_bytes());
}

void MpiBackend::reduce_scatter_wide(const Collective& call) {
  const std::int64_t shard = call.out.count();
  const std::int64_t block = std::max<std::int64_t>(1, std::min(shard, kWideElements / size()));
  std::vector<float> wide(static_cast<std::size_t>(block * size()));
  std::vector<float> result(static_cast<std::size_t>(block));
  for (std::int64_t begin = 0; begin < shard; begin += block) {
    const std::int64_t count = std::min(block, shard - begin);
    for (int q = 0; q < size(); ++q) {
      widen(call.in, q * shard + begin, count, wide.data() + q * count);
    }
    check_mpi(session_->mpi,
              session_->mpi.reduce_scatter(comm_, wide.data(), result.data(), int_count(count),
                                           heddle_mpi_f32, op_of(call.reduce)),
              "MPI_Reduce_scatter_block");
    narrow(result.data(), count, call.out, begin);
  }
}

void MpiBackend::all_to_all(const Collective& call) {
  const auto width = [](const Tensor& rows) {
    return rows.size(0) == 0 ? 0 : rows.count() / rows.size(0);
  };
  const std::int64_t elements = std::max(width(call.in), width(call.out));
  const auto layout = [&](const std::vector<std::int64_t>& rows, std::vector<int>& counts,
                          std::vector<int>& offsets) {
    std::int64_t offset = 0;
    for (const std::int64_t count : rows) {
      counts.push_back(int_count(count * elements));
      offsets.push_back(int_count(offset));
      offset += count * elements;
    }
  };
  std::vector<int> in_counts, in_offsets, out_counts, out_offsets;
  layout(call.send_rows, in_counts, in_offsets);
  layout(call.recv_rows, out_counts, out_offsets);
  check_mpi(session_->mpi,
            session_->mpi.all_to_all(comm_, call.in.bytes(), in_counts.data(), in_offsets.data(),
                                     call.out.bytes(), out_counts.data(), out_offsets.data(),
                                     static_cast<int>(size_of(call.in.dtype()))),
            "MPI_Alltoallv");
}

void MpiBackend::broadcast(const Collective& call) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  for (std::size_t begin = 0; begin < call.out.size_bytes(); begin += kMostBytes) {
    const std::size_t bytes = std::min(kMostBytes, call.out.size_bytes() - begin);
    check_mpi(session_->mpi,
              session_->mpi.broadcast(comm_, call.out.bytes() + begin, static_cast<int>(bytes),
                                      call.root),
              "MPI_Bcast");
  }
}

void MpiBackend::send(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) {
  session_->failure->check();
  HeddleMpiRequest* request = nullptr;
  check_mpi(session_->mpi,
            session_->mpi.isend(comm_, data.bytes(), int_count(data.count()),
                                static_cast<int>(size_of(data.dtype())), peer, tag, &request),
            "MPI_Issend");
  session_->progress->add({.request = request,
                           .data = data,
                           .peer = fmt::format("rank {}", world_rank(peer)),
                           .done = std::move(done)});
}

void MpiBackend::recv(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) {
  session_->failure->check();
  HeddleMpiRequest* request = nullptr;
  check_mpi(session_->mpi,
            session_->mpi.irecv(comm_, data.bytes(), int_count(data.count()),
                                static_cast<int>(size_of(data.dtype())), peer, tag, &request),
            "MPI_Irecv");
  session_->progress->add({.request = request,
                           .data = data,
                           .is_receive = true,
                           .peer = fmt::format("rank {}", world_rank(peer)),
                           .done = std::move(done)});
}

std::shared_ptr<CommBackend> MpiBackend::split(int color, int key, std::int64_t sequence) {
  session_->failure->check();
  HeddleMpiComm part = 0;
  int rank_in_part = 0, size = 0;
  check_mpi(session_->mpi, session_->mpi.split(comm_, color, key, &part, &rank_in_part, &size),
            "MPI_Comm_split");
  if (size == 0) return nullptr;
  auto group = std::make_shared<Group>();
  group->id = group_id_of_part(CommBackend::group()->id, sequence, color);
  group->ranks.resize(static_cast<std::size_t>(size));
  const int own = world_rank(rank());
  check_mpi(session_->mpi,
            session_->mpi.all_gather(part, &own, group->ranks.data(), 1, sizeof(int)),
            "MPI_Allgather");
  return std::make_shared<MpiBackend>(rank_in_part, std::move(group), part, session_);
}

void MpiBackend::abort(std::string_view why) noexcept {
  session_->stop_world(fmt::format("rank {} stopped: {}", world_rank(rank()), why));
}

}  // namespace heddle
