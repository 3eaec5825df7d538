#pragma once

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

}  // namespace heddle
