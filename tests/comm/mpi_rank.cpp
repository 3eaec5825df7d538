// One rank of the tests under mpirun:
//   mpi_rank cases                          every collective and message
//   mpi_rank train FAULT RANK CALL LIMIT FOLDER   steps of training with a fault before that call
//   of that rank
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "comm/collective_cases.h"
#include "comm/mpi/mpi_world.h"
#include "comm/training_calls.h"

namespace heddle {
namespace {

World* this_rank = nullptr;

TEST(Mpi, CollectivesEqualAPlainLoop) { testing::check_collectives(*this_rank, false); }
TEST(Mpi, CollectivesInTheBackgroundEqualAPlainLoop) {
  testing::check_collectives(*this_rank, true);
}
TEST(Mpi, MessagesArriveInOrderPerTag) { testing::check_messages(*this_rank); }
TEST(Mpi, ReceivesMayBePostedFirst) { testing::check_early_receives(*this_rank); }
TEST(Mpi, SplitsByColorAndKey) { testing::check_split(*this_rank); }
TEST(Mpi, GroupsWorkAtTheSameTime) { testing::check_overlap(*this_rank); }
TEST(Mpi, ASendHoldsItsTensorUntilItWasTaken) {
  testing::CommCase c{.world = *this_rank};
  if (c.size() < 2 || c.rank() > 1) return c.all().barrier();
  if (c.rank() == 0) {
    const Work work = c.all().send(testing::filled(c, 5, DType::f32, 3), 1, c.stream);
    EXPECT_FALSE(work.done());
    EXPECT_GT(total(c.memory.stats().live), 0U);
    c.all().barrier();
    work.wait(c.stream);
    EXPECT_EQ(total(c.memory.stats().live), 0U);
  } else {
    c.all().barrier();
    const Tensor data = c.memory.zeros({5}, DType::f32, MemoryTag::communication);
    c.all().recv(data, 0, c.stream).wait(c.stream);
    EXPECT_EQ(testing::load(data, 4), testing::value_at(3, 4));
  }
}

void run_cases(World& world) {
  this_rank = &world;
  if (RUN_ALL_TESTS() != 0) fail(ErrorCode::internal, "tests failed");
}

bool inject(std::string_view fault) {
  using namespace std::chrono_literals;
  if (fault == "skip") return false;
  if (fault == "throw") fail(ErrorCode::data, "corpus.bin is torn");
  if (fault == "freeze") std::this_thread::sleep_for(1h);
  if (fault == "stop") std::raise(SIGSTOP);
  if (fault == "kill") std::raise(SIGKILL);
  return true;
}

int run(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped process must not stay behind
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "cases") {
    run_mpi_rank(HEDDLE_MPI_LIBRARY, run_cases);
    return 0;
  }
  if (mode != "train" || argc != 7) return 2;
  const int rank = std::stoi(argv[3]), call = std::stoi(argv[4]);
  int calls = 0;
  run_mpi_rank(HEDDLE_MPI_LIBRARY,
               [&](World& world) {
                 if (world.rank() == rank) {
                   world.flight().set_hook(
                       [&](const CommCall&) { return ++calls == call ? inject(argv[2]) : true; });
                 }
                 testing::train(world);
               },
               {.limit = std::chrono::duration<double>(std::stod(argv[5])),
                .flight_folder = argv[6],
                .grace = std::chrono::duration<double>(0.5)});
  return 0;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    return heddle::run(argc, argv);
  } catch (const heddle::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
