#include "cli/slurm.h"

#include <gtest/gtest.h>

#include <vector>

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

TEST(TasksOnNode, AreCountedAsSlurmWritesThem) {
  EXPECT_EQ(tasks_on_node("8", 0), 8);
  for (int node = 0; node < 5; ++node) {
    EXPECT_EQ(tasks_on_node("4(x2),3,2(x2)", node), (std::vector{4, 4, 3, 2, 2}[node])) << node;
  }
}

TEST(TasksOnNode, RefusesWhatCountsNothing) {
  for (const char* text : {"", "x", "4(x", "4(x0)", "4,,3", "-1"}) {
    EXPECT_THROW(tasks_on_node(text, 7), Error) << text;
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
