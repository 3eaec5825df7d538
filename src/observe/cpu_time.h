#pragma once

#include <filesystem>
#include <vector>

namespace heddle::observe {

/// Seconds that these cores have been busy since the machine started, whoever kept them so, time
/// that the host gave to other machines included. Negative where /proc under `root` does not say.
double busy_seconds(const std::vector<int>& cores, const std::filesystem::path& root = "/");

/// Watches who has the cores that this process may use.
class CpuShare {
 public:
  CpuShare();
  /// The share of those cores, 0 to 1, that went to others than this process since then; 0 where it
  /// is not known.
  double of_others() const;

 private:
  std::vector<int> cores_;
  double busy_, own_, clock_;
};

/// The load average of the last minute; 0 where it is not known.
double load_average();

}  // namespace heddle::observe
