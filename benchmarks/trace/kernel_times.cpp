// Writes when every kernel, copy and fill of a CUDA program ran, as the program runs on its own:
// kernels follow one another and the clocks are those of the load, as no profiler that serialises
// them shows it. The driver loads this library into any program:
//   CUDA_INJECTION64_PATH=libkernel_times.so KERNEL_TIMES=times.csv heddle bench train ...
// A line is: begin in ns, end in ns, name.
#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

std::FILE* file = nullptr;

void give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *size = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  *most_records = 0;
}

void write(std::uint64_t begin, std::uint64_t end, const char* name) {
  std::fprintf(file, "%llu,%llu,\"%s\"\n", static_cast<unsigned long long>(begin),
               static_cast<unsigned long long>(end), name);
}

void take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* const kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      write(kernel->start, kernel->end, kernel->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* const copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      write(copy->start, copy->end, "copy");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* const fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      write(fill->start, fill->end, "fill");
    }
  }
  std::free(buffer);
}

void finish() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  std::fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* const path = std::getenv("KERNEL_TIMES");
  file = std::fopen(path != nullptr ? path : "kernel_times.csv", "w");
  if (file == nullptr) return 0;
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  for (const auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                          CUPTI_ACTIVITY_KIND_MEMSET}) {
    cuptiActivityEnable(kind);
  }
  std::atexit(finish);
  return 1;
}
