#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdlib>
#include <string>

namespace {

/// CTest runs this program once more for each lesser SIMD target, named in the environment, so that
/// the code for processors other than this one is tested too.
class SimdTarget : public testing::Environment {
 public:
  void SetUp() override {
    const char* const name = std::getenv("HEDDLE_TEST_SIMD");
    if (name == nullptr) return;
    if (std::string(name) == "avx2") hwy::DisableTargets(HWY_AVX3);
    if (std::string(name) == "baseline") hwy::DisableTargets(HWY_AVX3 | HWY_AVX2);
  }
};

[[maybe_unused]] const auto* const kSimdTarget = testing::AddGlobalTestEnvironment(new SimdTarget);

}  // namespace
