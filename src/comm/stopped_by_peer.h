#pragma once

#include <vector>

#include "base/error.h"

namespace heddle {

/// What ends a rank because another one failed: the code is that of the cause, so all ranks end
/// with one status. The rank `teller` says it to the user, this one need not.
class StoppedByPeer : public Error {
 public:
  StoppedByPeer(ErrorCode code, std::string message, int teller)
      : Error(code, std::move(message)), teller_(teller) {}
  int teller() const { return teller_; }

 private:
  int teller_;
};

/// The same where the cause is that ranks are lost (Verdict::lost), on all that are not: also on
/// the one that has told it.
class RanksLost : public StoppedByPeer {
 public:
  RanksLost(std::string message, int teller, std::vector<int> ranks)
      : StoppedByPeer(ErrorCode::peer, std::move(message), teller), ranks_(std::move(ranks)) {}
  /// Their numbers, in the world that failed.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

}  // namespace heddle
