// The functions of cuDNN that its frontend and we call, found at run time.
#include <cudnn.h>

#include "ops/cuda/run_time_library.h"

#define FORWARD(name, ...) \
  HEDDLE_FORWARD("libcudnn.so." HEDDLE_TEXT_OF(CUDNN_MAJOR),                           \
                 "install cuDNN " HEDDLE_TEXT_OF(CUDNN_MAJOR) " and put its folder "   \
                 "into LD_LIBRARY_PATH", name, __VA_ARGS__)

size_t cudnnGetVersion() { FORWARD(cudnnGetVersion); }

const char* cudnnGetErrorString(cudnnStatus_t status) { FORWARD(cudnnGetErrorString, status); }

void cudnnGetLastErrorString(char* message, size_t bytes) {
  FORWARD(cudnnGetLastErrorString, message, bytes);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { FORWARD(cudnnCreate, handle); }

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { FORWARD(cudnnDestroy, handle); }

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  FORWARD(cudnnSetStream, handle, stream);
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  FORWARD(cudnnGetStream, handle, stream);
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  FORWARD(cudnnBackendCreateDescriptor, type, descriptor);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  FORWARD(cudnnBackendDestroyDescriptor, descriptor);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  FORWARD(cudnnBackendFinalize, descriptor);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  FORWARD(cudnnBackendSetAttribute, descriptor, name, type, count, elements);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t* count, void* elements) {
  FORWARD(cudnnBackendGetAttribute, descriptor, name, type, most, count, elements);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant) {
  FORWARD(cudnnBackendExecute, handle, plan, variant);
}
