#pragma once

#include "comm/communicator.h"

namespace heddle {

/// The group of one rank: collectives are the identity, point-to-point does not exist.
class SelfCommunicator : public Communicator {
 public:
  SelfCommunicator();
};

}  // namespace heddle
