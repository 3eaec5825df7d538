#include "cli/slurm.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace heddle::cli {
namespace {

TEST(FirstHost, IsTheFirstOfACompressedList) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("gpu5,node[01-03,07]"), "gpu5");
  EXPECT_EQ(first_host("node[01-03,07],gpu5"), "node01");
  EXPECT_EQ(first_host("node[7,9-12]"), "node7");
  EXPECT_EQ(first_host("rack[2-3]-node[010-020]"), "rack2-node010");
  EXPECT_EQ(first_host("node[1-2].cluster.example"), "node1.cluster.example");
  EXPECT_EQ(first_host("10.0.0.7"), "10.0.0.7");
}

TEST(FirstHost, RefusesWhatIsNoList) {
  for (const char* text : {"", ",node1", "node[", "node[]", "node[a-b]", "node1]", "node[1-2"}) {
    EXPECT_THROW(first_host(text), Error) << text;
  }
}

TEST(SlurmPort, IsInItsRangeAndDiffersBetweenNeighbours) {
  EXPECT_EQ(slurm_port(0, 0), 20000);
  EXPECT_NE(slurm_port(1234, 0), slurm_port(1234, 1));
  EXPECT_NE(slurm_port(1234, 0), slurm_port(1235, 0));
  for (const std::uint64_t job : {1ULL, 999999ULL, 4294967295ULL}) {
    EXPECT_GE(slurm_port(job, 7), 20000);
    EXPECT_LT(slurm_port(job, 7), 30000);
  }
}

}  // namespace
}  // namespace heddle::cli
