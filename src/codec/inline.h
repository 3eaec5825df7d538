#pragma once

// For functions that kernels of every backend share. Always inlined: so they are compiled for the
// instruction set of their caller.
#ifdef __CUDACC__
#define HEDDLE_CODEC_INLINE __host__ __device__ __forceinline__
#else
#define HEDDLE_CODEC_INLINE __attribute__((always_inline)) inline
#endif
