// Communicators of NCCL come to an end without it: functions of its library are noted, not called.
#include "comm/nccl/nccl_comm.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "base/error.h"
#include "comm/stopped_by_peer.h"
#include "comm/tcp/tcp_world.h"

namespace heddle {
namespace {

using namespace std::chrono_literals;
using Calls = std::vector<std::string>;

/// What the functions of the library do, of which there is one.
struct Noted {
  std::mutex mutex;
  Calls calls;
  std::atomic<ncclResult_t> state = ncclSuccess;  // of every communicator
  std::atomic<bool> was_revoked = false;

  void add(const std::string& call) {
    const std::lock_guard lock(mutex);
    calls.push_back(call);
  }
} noted;

ncclComm_t comm_numbered(std::uintptr_t number) { return reinterpret_cast<ncclComm_t>(number); }

std::string text_of(const char* call, ncclComm_t comm) {
  return call + std::string(" ") + std::to_string(reinterpret_cast<std::uintptr_t>(comm));
}

NcclLibrary noting_library() {
  NcclLibrary library{};
  library.get_unique_id = [](ncclUniqueId*) { return ncclSuccess; };
  library.init_rank = [](ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t* config) {
    *comm = comm_numbered(1);
    noted.add(config->blocking == 0 ? "init 1, at once" : "init 1");
    return ncclInProgress;
  };
  library.split = [](ncclComm_t from, int, int, ncclComm_t* comm, ncclConfig_t* config) {
    *comm = comm_numbered(2);
    noted.add(text_of(config->blocking == 0 ? "split, at once" : "split", from));
    return ncclInProgress;
  };
  library.abort = [](ncclComm_t comm) {
    noted.add(text_of("abort", comm));
    return ncclSuccess;
  };
  library.revoke = [](ncclComm_t comm, int) {
    noted.add(text_of("revoke", comm));
    noted.was_revoked = true;
    return ncclSuccess;
  };
  library.destroy = [](ncclComm_t comm) {
    noted.add(text_of("destroy", comm));
    return ncclSuccess;
  };
  library.async_error = [](ncclComm_t, ncclResult_t* state) {
    *state = noted.state;
    return ncclSuccess;
  };
  library.error_string = [](ncclResult_t) { return "an error"; };
  library.group_start = [] {
    noted.add("group");
    return ncclSuccess;
  };
  library.group_end = [] {
    noted.add("end");
    return ncclSuccess;
  };
  return library;
}

class NcclComms : public ::testing::Test {
 protected:
  void SetUp() override {
    noted.calls.clear();
    noted.state = ncclSuccess;
    noted.was_revoked = false;
  }
  std::shared_ptr<NcclComm> make() {
    return std::make_shared<NcclComm>(library_, comm_numbered(7));
  }

  const NcclLibrary library_ = noting_library();
};

TEST_F(NcclComms, AreDestroyedAtTheEnd) {
  make().reset();
  EXPECT_EQ(noted.calls, Calls{"destroy 7"});
}

TEST_F(NcclComms, AreAbortedWhereTheyHaveFailed) {
  auto comm = make();
  noted.state = ncclRemoteError;
  EXPECT_THROW(comm->with([](ncclComm_t) { FAIL() << "it has failed"; }), Error);
  comm.reset();
  EXPECT_EQ(noted.calls, Calls{"abort 7"});
}

TEST_F(NcclComms, AreAbortedOnceWhenTheWorldFails) {
  WorldFailure world;
  auto comm = make();
  world.watch(comm);
  world.fail("rank 2 is gone");
  comm->wake_all();
  EXPECT_THROW(comm->with([](ncclComm_t) { FAIL() << "it was aborted"; }), Error);
  comm.reset();
  EXPECT_EQ(noted.calls, Calls{"abort 7"});
}

TEST_F(NcclComms, AreAbortedWhereTheWorldHasFailedBefore) {
  WorldFailure world;
  world.fail("rank 2 is gone");
  auto comm = make();
  world.watch(comm);
  comm.reset();
  EXPECT_EQ(noted.calls, Calls{"abort 7"});
}

TEST_F(NcclComms, AreFreedWhenWhoIsInsideOfACallHasLeft) {
  auto comm = make();
  std::atomic<bool> is_inside = false;
  std::thread user([&] {
    comm->with([&](ncclComm_t) {
      is_inside = true;
      while (!noted.was_revoked) std::this_thread::sleep_for(1ms);  // as for a lost rank
      std::this_thread::sleep_for(50ms);
      noted.add("left");
    });
  });
  while (!is_inside) std::this_thread::sleep_for(1ms);
  comm->wake_all();
  user.join();
  comm.reset();
  EXPECT_EQ(noted.calls, (Calls{"revoke 7", "left", "abort 7"}));
}

TEST_F(NcclComms, AreMadeByOneThatNeverWaits) {
  const TcpWorld world(0, std::vector<TcpLink>(1));
  const auto host = world.all([](const std::string&) {});
  MadeNcclComm made = make_nccl_comm(library_, *host);
  made.comm->with([](ncclComm_t comm) { EXPECT_EQ(comm, comm_numbered(2)); });
  EXPECT_EQ(noted.calls, (Calls{"init 1, at once", "split 1"}));
  made = {};
  EXPECT_EQ(std::set(noted.calls.begin() + 2, noted.calls.end()),
            (std::set<std::string>{"destroy 1", "destroy 2"}));
}

TEST_F(NcclComms, AreAbortedWithTheOneThatMadeThem) {
  const TcpWorld world(0, std::vector<TcpLink>(1));
  const auto host = world.all([](const std::string&) {});
  MadeNcclComm made = make_nccl_comm(library_, *host);
  world.failure->fail("rank 2 is gone");
  made = {};
  EXPECT_EQ(std::set(noted.calls.begin() + 2, noted.calls.end()),
            (std::set<std::string>{"abort 1", "abort 2"}));
}

TEST_F(NcclComms, AreGivenUpWhenARankIsLostBeforeTheyAreMade) {
  const TcpWorld world(0, std::vector<TcpLink>(1));
  const auto host = world.all([](const std::string&) {});
  noted.state = ncclInProgress;  // for ever
  std::thread failing([&] {
    std::this_thread::sleep_for(20ms);
    world.failure->fail("rank 2 is gone");
  });
  EXPECT_THROW(make_nccl_comm(library_, *host), StoppedByPeer);
  failing.join();
  EXPECT_EQ(noted.calls, (Calls{"init 1, at once", "abort 1"}));
}

TEST_F(NcclComms, AreGivenUpWhenNcclFails) {
  const TcpWorld world(0, std::vector<TcpLink>(1));
  const auto host = world.all([](const std::string&) {});
  noted.state = ncclRemoteError;
  EXPECT_THROW(make_nccl_comm(library_, *host), Error);
  EXPECT_EQ(noted.calls, (Calls{"init 1, at once", "abort 1"}));
}

TEST_F(NcclComms, GroupsAreClosedWhereACallThrows) {
  EXPECT_THROW(in_nccl_group(library_, [] { fail(ErrorCode::peer, "a rank is gone"); }), Error);
  in_nccl_group(library_, [] { noted.add("sum"); });
  EXPECT_EQ(noted.calls, (Calls{"group", "end", "group", "sum", "end"}));
}

}  // namespace
}  // namespace heddle
