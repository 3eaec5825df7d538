// A program built with CUDA starts where no library of CUDA is installed: a login node plans runs
// for machines that have them.

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "cli/run_program.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"

namespace heddle {
namespace {

#ifndef HEDDLE_HAS_CUDA
constexpr bool kHasCuda = false;
#else
constexpr bool kHasCuda = true;
#endif

std::string output_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  for (char line[512]; std::fgets(line, sizeof(line), pipe) != nullptr;) text += line;
  return ::pclose(pipe) == 0 ? text : "";
}

TEST(ProgramFile, NeedsNoLibraryOfCuda) {
  if (!kHasCuda) GTEST_SKIP() << "built without CUDA";
  const std::string needed = output_of("readelf -d " HEDDLE_PROGRAM " | grep NEEDED");
  ASSERT_NE(needed.find("libc.so"), std::string::npos) << "readelf (binutils) is missing";
  for (const char* library : {"libcu", "libnv", "libnccl", "libmpi"}) {
    EXPECT_EQ(needed.find(library), std::string::npos) << needed;
  }
}

TEST(ProgramFile, PlansWhereTheLibrariesOfCudaAreMissing) {
  if (!kHasCuda) GTEST_SKIP() << "built without CUDA";
  // The loader finds an empty file under the name first, and refuses it.
  const TemporaryFolder folder;
  for (const char* library :
       {"libcublasLt.so.12", "libcublasLt.so.13", "libcublas.so.12", "libcublas.so.13",
        "libcudnn.so.9", "libcudart.so.12", "libcudart.so.13", "libnvrtc.so.12", "libnvrtc.so.13",
        "libcuda.so.1", "libnccl.so.2"}) {
    std::ofstream(folder.path() / library) << "";
  }
  const RunOptions options{.environment = {{"LD_LIBRARY_PATH", folder.path().string()}}};
  EXPECT_EQ(run_heddle({"--version"}, options).status, 0);
  const Outcome plan = run_heddle({"plan", "--model", "gpt2-124m", "--system",
                                   source_dir() + "/configs/systems/h200-hgx-ndr.toml", "--gpus",
                                   "8", "--batch-tokens", "524288"},
                                  options);
  EXPECT_EQ(plan.status, 0) << plan.err;
  const Outcome bench =
      run_heddle({"bench", "train", "--model", "gpt2-124m", "--device", "cuda"}, options);
  EXPECT_EQ(bench.status, 3) << bench.err;
}

}  // namespace
}  // namespace heddle
