#include "comm/threads/thread_world.h"

#include <fmt/format.h>

#include <numeric>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "comm/threads/thread_backend.h"

namespace heddle {
namespace {

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an unknown exception";
  }
}

}  // namespace

ThreadWorld::ThreadWorld(int ranks) : failure_(std::make_shared<ThreadFailure>()) {
  HEDDLE_CHECK(ranks > 0, "a world of {} ranks", ranks);
  auto group = std::make_shared<Group>();
  group->ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(group->ranks.begin(), group->ranks.end(), 0);
  const auto shared = std::make_shared<ThreadGroup>(failure_, std::move(group));
  failure_->watch(shared);
  for (int rank = 0; rank < ranks; ++rank) {
    worlds_.push_back(std::make_unique<World>(
        std::make_unique<Communicator>(std::make_shared<ThreadBackend>(rank, shared),
                                       std::make_shared<FlightRecorder>(rank), "world")));
  }
}

void ThreadWorld::run(const std::function<void(World&)>& body) {
  std::vector<std::exception_ptr> failures(worlds_.size());
  std::atomic<int> first = -1;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(world(rank));
        } catch (...) {
          auto& failure = failures[static_cast<std::size_t>(rank)] = std::current_exception();
          if (failure_->fail(fmt::format("rank {} stopped: {}", rank, message_of(failure)))) {
            first = rank;
          }
        }
      });
    }
  }
  if (first >= 0) std::rethrow_exception(failures[static_cast<std::size_t>(first.load())]);
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

void run_ranks(int ranks, const std::function<void(World&)>& body) { ThreadWorld(ranks).run(body); }

}  // namespace heddle
