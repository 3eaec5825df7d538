// The only file compiled against mpi.h; see docs/design/009-mpi-at-run-time.md.
#include "comm/mpi/mpi_shim.h"

#include <mpi.h>

#include <cstring>

struct HeddleMpiRequest {
  MPI_Request request;
};

namespace {

// An int in some implementations, a pointer in others: only this kind of cast does both.
MPI_Comm of(HeddleMpiComm comm) { return (MPI_Comm)comm; }

MPI_Datatype type_of(HeddleMpiType type) {
  switch (type) {
    case heddle_mpi_f32: return MPI_FLOAT;
    case heddle_mpi_f64: return MPI_DOUBLE;
    case heddle_mpi_i32: return MPI_INT32_T;
    case heddle_mpi_i64: return MPI_INT64_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Datatype unit_of(int bytes) {
  switch (bytes) {
    case 2: return MPI_UINT16_T;
    case 4: return MPI_UINT32_T;
    case 8: return MPI_UINT64_T;
    default: return MPI_BYTE;
  }
}

MPI_Op op_of(HeddleMpiOp op) { return op == heddle_mpi_sum ? MPI_SUM : MPI_MAX; }

int adopt(MPI_Comm comm, HeddleMpiComm* handle, int* rank, int* size) {
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm, rank);
  MPI_Comm_size(comm, size);
  *handle = (HeddleMpiComm)comm;
  return MPI_SUCCESS;
}

int init(HeddleMpiComm* world, int* rank, int* size) {
  int provided = 0;
  if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided)) {
    return code;
  }
  if (provided < MPI_THREAD_MULTIPLE) return -1;
  return adopt(MPI_COMM_WORLD, world, rank, size);
}

int finalize() { return MPI_Finalize(); }

int split(HeddleMpiComm comm, int color, int key, HeddleMpiComm* part, int* rank, int* size) {
  MPI_Comm made = MPI_COMM_NULL;
  *size = 0;
  if (const int code = MPI_Comm_split(of(comm), color < 0 ? MPI_UNDEFINED : color, key, &made)) {
    return code;
  }
  return made == MPI_COMM_NULL ? MPI_SUCCESS : adopt(made, part, rank, size);
}

int all_reduce(HeddleMpiComm comm, void* inout, int count, HeddleMpiType type, HeddleMpiOp op) {
  return MPI_Allreduce(MPI_IN_PLACE, inout, count, type_of(type), op_of(op), of(comm));
}

int all_gather(HeddleMpiComm comm, const void* in, void* out, int count, int unit) {
  const MPI_Datatype type = unit_of(unit);
  return MPI_Allgather(in ? in : MPI_IN_PLACE, count, type, out, count, type, of(comm));
}

int reduce_scatter(HeddleMpiComm comm, const void* in, void* out, int count, HeddleMpiType type,
                   HeddleMpiOp op) {
  return MPI_Reduce_scatter_block(in, out, count, type_of(type), op_of(op), of(comm));
}

int all_to_all(HeddleMpiComm comm, const void* in, const int* in_counts, const int* in_offsets,
               void* out, const int* out_counts, const int* out_offsets, int unit) {
  const MPI_Datatype type = unit_of(unit);
  return MPI_Alltoallv(in, in_counts, in_offsets, type, out, out_counts, out_offsets, type,
                       of(comm));
}

int broadcast(HeddleMpiComm comm, void* data, int bytes, int root) {
  return MPI_Bcast(data, bytes, MPI_BYTE, root, of(comm));
}

int barrier(HeddleMpiComm comm) { return MPI_Barrier(of(comm)); }

int isend(HeddleMpiComm comm, const void* data, int count, int unit, int peer, int tag,
          HeddleMpiRequest** request) {
  *request = new HeddleMpiRequest{};
  // Synchronous: done means that the receiver has taken it, as Communicator::send promises.
  return MPI_Issend(data, count, unit_of(unit), peer, tag, of(comm), &(*request)->request);
}

int irecv(HeddleMpiComm comm, void* data, int count, int unit, int peer, int tag,
          HeddleMpiRequest** request) {
  *request = new HeddleMpiRequest{};
  return MPI_Irecv(data, count, unit_of(unit), peer, tag, of(comm), &(*request)->request);
}

int test(HeddleMpiRequest* request, int* is_done, std::int64_t* received) {
  MPI_Status status;
  int code = MPI_Test(&request->request, is_done, &status);
  if (code == MPI_SUCCESS && *is_done) {
    MPI_Count bytes = 0;
    code = MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    *received = bytes;
  }
  if (code != MPI_SUCCESS || *is_done) delete request;
  return code;
}

void error_text(int code, char* text, int size) {
  char full[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  if (MPI_Error_string(code, full, &length) != MPI_SUCCESS) std::strcpy(full, "unknown error");
  std::strncpy(text, full, static_cast<std::size_t>(size - 1));
  text[size - 1] = '\0';
}

}  // namespace

const HeddleMpi* heddle_mpi_v1() {
  static const HeddleMpi table = {init,           finalize,   split,     all_reduce, all_gather,
                                  reduce_scatter, all_to_all, broadcast, barrier,    isend,
                                  irecv,          test,       error_text};
  return &table;
}
