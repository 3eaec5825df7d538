#include "ops/cuda/run_time_library.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace heddle::ops::cuda {
namespace {

void expect_refusal(const char* library, const char* function, const std::string& mention) {
  try {
    library_function(library, function, "install it");
    FAIL() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resources);
    EXPECT_NE(error.message().find(std::string("device cuda needs ") + library), std::string::npos);
    EXPECT_NE(error.message().find(mention), std::string::npos) << error.message();
    EXPECT_EQ(error.hint(), "install it");
  }
}

TEST(RunTimeLibrary, IsNamedWhereItOrItsFunctionIsMissing) {
  expect_refusal("libheddle_absent.so.7", "anything", "libheddle_absent.so.7");
  expect_refusal("libc.so.6", "heddle_absent_function", "heddle_absent_function");
}

TEST(RunTimeLibrary, GivesItsFunctions) {
  const auto length =
      reinterpret_cast<std::size_t (*)(const char*)>(library_function("libc.so.6", "strlen", ""));
  EXPECT_EQ(length("warp"), 4U);
}

}  // namespace
}  // namespace heddle::ops::cuda
