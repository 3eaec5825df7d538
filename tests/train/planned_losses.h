#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "train/fake_company.h"
#include "train/trainer.h"

namespace heddle {

/// How a run whose members are lost by a plan has ended.
struct PlannedRun {
  int epochs = 0;
  std::vector<std::string> failures;
  std::vector<TrainOutcome> outcomes;
};

/// Trains with members that are threads, of whom `losses` are lost (FakeCompany::losses). Somebody
/// new takes the place of each.
inline PlannedRun train_with_losses(const config::RunConfig& config, const TrainOptions& options,
                                    int ranks, std::map<std::int64_t, std::set<int>> losses) {
  FakeCompany company(1);
  company.replaces = true;
  company.losses = std::move(losses);
  company.expect(ranks);
  PlannedRun seen;
  std::mutex mutex;
  std::vector<std::unique_ptr<FakeCompany::Seat>> seats;  // outlive what was made of them
  const auto take_seat = [&]() -> FakeCompany::Seat& {
    const std::lock_guard lock(mutex);
    return *seats.emplace_back(company.seat());
  };
  // A member's thread is also that of whoever comes in its place.
  const auto be_members = [&] {
    for (bool is_lost = true; is_lost;) {
      FakeCompany::Seat& seat = take_seat();
      is_lost = false;
      try {
        const TrainOutcome outcome = train(config, options, seat);
        const std::lock_guard lock(mutex);
        seen.outcomes.push_back(outcome);
      } catch (const Killed&) {
        is_lost = true;
      } catch (const std::exception& error) {
        seat.die();
        const std::lock_guard lock(mutex);
        seen.failures.emplace_back(error.what());
      }
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(be_members);
  for (std::thread& thread : threads) thread.join();
  seen.epochs = company.epochs();
  return seen;
}

}  // namespace heddle
