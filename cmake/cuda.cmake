# The CUDA backend: AUTO builds it where nvcc, cuBLASLt, cuDNN and its frontend are found, ON requires them, OFF leaves it out.
# Sets HEDDLE_HAS_CUDA, HEDDLE_HAS_NCCL, and HEDDLE_CUDA_TWIN, the folder ("cuda" or "cuda_none") that a module with twins compiles.
set(HEDDLE_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set(HEDDLE_HAS_CUDA FALSE)
set(HEDDLE_CUDA_TWIN cuda_none)

if(HEDDLE_CUDA STREQUAL "AUTO" AND (HEDDLE_SANITIZE OR HEDDLE_FUZZ))
  return()  # host sanitizers and the CUDA libraries do not go together
endif()

if(NOT HEDDLE_CUDA STREQUAL "OFF")
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90-real)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
    # scripts/setup.sh fetches these headers.
    find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
      HINTS $ENV{XDG_CACHE_HOME}/heddle/cudnn-frontend-1.18.0/include
            $ENV{HOME}/.cache/heddle/cudnn-frontend-1.18.0/include)
  endif()
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cublasLt AND CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY
      AND CUDNN_FRONTEND_INCLUDE_DIR)
    set(HEDDLE_HAS_CUDA TRUE)
  elseif(HEDDLE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HEDDLE_CUDA=ON, but of nvcc (${CMAKE_CUDA_COMPILER}), CUDA's headers and cuBLASLt "
      "(${CUDAToolkit_LIBRARY_DIR}), cuDNN (${CUDNN_LIBRARY}) and its frontend (${CUDNN_FRONTEND_INCLUDE_DIR}; "
      "scripts/setup.sh fetches it) something is missing; install it or set HEDDLE_CUDA=OFF")
  endif()
endif()

set(HEDDLE_HAS_NCCL FALSE)
if(HEDDLE_HAS_CUDA)
  set(HEDDLE_CUDA_TWIN cuda)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NCCL_INCLUDE_DIR)
    set(HEDDLE_HAS_NCCL TRUE)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  if(CCACHE_PROGRAM)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_COMMAND})
  endif()
  enable_language(CUDA)
  # Behind enable_language, whose own tests it would break. CMake 3.25 does not know that nvcc has it.
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
