#pragma once

#include "comm/communicator.h"

namespace heddle {

/// One rank of a group whose other ranks do not exist: nothing travels, calls are counted. Lets one
/// process walk through the step of any rank. Results keep whatever bytes they had.
class RecordCommunicator : public Communicator {
 public:
  /// split is not supported: who needs a smaller group makes one of the right size.
  RecordCommunicator(int rank, int size);
};

}  // namespace heddle
