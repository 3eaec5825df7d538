#pragma once

namespace heddle::ops::cuda {

/// The address of a function of a shared library, which is opened at the first call and stays open.
/// Error(resources) with the library's name and `hint` where either is missing.
void* library_function(const char* library, const char* function, const char* hint);

}  // namespace heddle::ops::cuda

/// The body of a function with the name and type of one of the library's, which it calls. A file
/// that defines such functions stands in for linking the library: the program starts without it
/// (docs/design/016-cuda-libraries-at-run-time.md).
#define HEDDLE_FORWARD(library, hint, name, ...)                    \
  static const auto function = reinterpret_cast<decltype(&name)>(   \
      ::heddle::ops::cuda::library_function(library, #name, hint)); \
  return function(__VA_ARGS__)
#define HEDDLE_TEXT_OF(value) HEDDLE_TEXT(value)
#define HEDDLE_TEXT(value) #value
