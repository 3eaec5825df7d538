#pragma once

/* What heddle needs of MPI, as a table of C functions that libheddle_mpi.so fills in. The program
 * does not link MPI: it opens that library when a launcher started it. All functions return an MPI
 * error code, 0 for success. */

#include <cstdint>

extern "C" {

enum HeddleMpiType { heddle_mpi_f32, heddle_mpi_f64, heddle_mpi_i32, heddle_mpi_i64 };
enum HeddleMpiOp { heddle_mpi_sum, heddle_mpi_max };

/* An MPI_Comm, which is an int or a pointer. Lives until `finalize`. */
using HeddleMpiComm = std::intptr_t;
/* Opaque; freed by the `test` that finds it done. */
struct HeddleMpiRequest;

struct HeddleMpi {
  /* MPI_Init_thread with MPI_THREAD_MULTIPLE. -1: the library does not offer that. */
  int (*init)(HeddleMpiComm* world, int* rank, int* size);
  int (*finalize)();
  /* `size` is 0 for a negative color. */
  int (*split)(HeddleMpiComm comm, int color, int key, HeddleMpiComm* part, int* rank, int* size);
  int (*all_reduce)(HeddleMpiComm comm, void* inout, int count, HeddleMpiType type, HeddleMpiOp op);
  /* `in` null: in place. Counts are of units of `unit` bytes (1, 2, 4 or 8). */
  int (*all_gather)(HeddleMpiComm comm, const void* in, void* out, int count, int unit);
  int (*reduce_scatter)(HeddleMpiComm comm, const void* in, void* out, int count,
                        HeddleMpiType type, HeddleMpiOp op);
  /* Counts and offsets in units of `unit` bytes. */
  int (*all_to_all)(HeddleMpiComm comm, const void* in, const int* in_counts, const int* in_offsets,
                    void* out, const int* out_counts, const int* out_offsets, int unit);
  int (*broadcast)(HeddleMpiComm comm, void* data, int bytes, int root);
  int (*barrier)(HeddleMpiComm comm);
  int (*isend)(HeddleMpiComm comm, const void* data, int count, int unit, int peer, int tag,
               HeddleMpiRequest** request);
  int (*irecv)(HeddleMpiComm comm, void* data, int count, int unit, int peer, int tag,
               HeddleMpiRequest** request);
  /* `received` is the size in bytes of a message that came. */
  int (*test)(HeddleMpiRequest* request, int* is_done, std::int64_t* received);
  void (*error_text)(int code, char* text, int size);
};

/* The only symbol of the library. */
const HeddleMpi* heddle_mpi_v1();
using HeddleMpiEntry = decltype(&heddle_mpi_v1);
}
