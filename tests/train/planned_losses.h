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

/// Who comes in place of those who are lost.
struct Comers {
  bool replace = true;  ///< each at once
  /// Otherwise one in the step behind so many (FakeCompany::joins).
  std::set<std::int64_t> joins = {};
};

/// Trains with members that are threads, of whom `losses` are lost (FakeCompany::losses).
inline PlannedRun train_with_losses(const config::RunConfig& config, const TrainOptions& options,
                                    int ranks, std::map<std::int64_t, std::set<int>> losses,
                                    Comers comers = {}) {
  FakeCompany company(1);
  company.replaces = comers.replace;
  company.joins = comers.joins;
  company.losses = std::move(losses);
  company.expect(ranks);
  PlannedRun seen;
  std::mutex mutex;
  std::vector<std::unique_ptr<FakeCompany::Seat>> seats;  // outlive what was made of them
  const auto take_seat = [&]() -> FakeCompany::Seat& {
    const std::lock_guard lock(mutex);
    return *seats.emplace_back(company.seat());
  };
  // Whether somebody comes when a member is lost, and has to be waited for.
  const auto awaits_another = [&] {
    if (comers.replace) return true;
    std::int64_t step = 0;
    {
      const std::lock_guard lock(mutex);
      if (comers.joins.empty()) return false;
      step = comers.joins.extract(comers.joins.begin()).value();
    }
    company.wait_for_step(step);
    return true;
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
        is_lost = awaits_another();
      } catch (const std::exception& error) {
        seat.fail();
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
