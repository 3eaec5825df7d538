#include "mesh/mesh.h"

#include "comm/self/self_communicator.h"

namespace heddle {

Mesh::Mesh() {
  for (auto& comm : comms_) comm = std::make_unique<SelfCommunicator>();
}

int Mesh::ranks() const {
  int product = 1;
  for (const auto& comm : comms_) product *= comm->size();
  return product;
}

}  // namespace heddle
