#pragma once

#include <memory>
#include <string_view>

#include "comm/communicator.h"

namespace heddle {

/// One rank's view of all ranks of the run. Its communicators share one flight recorder.
class World {
 public:
  explicit World(std::unique_ptr<Communicator> all) : all_(std::move(all)) {}

  int rank() const { return all_->rank(); }
  int size() const { return all_->size(); }
  /// The group of all ranks.
  Communicator& all() const { return *all_; }
  FlightRecorder& flight() const { return all_->flight(); }
  /// Makes every other rank fail with "rank N stopped: why"; the first reason stays.
  void abort(std::string_view why) noexcept { all_->abort(why); }

 private:
  std::unique_ptr<Communicator> all_;
};

}  // namespace heddle
