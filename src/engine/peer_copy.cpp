#include "engine/peer_copy.h"

namespace heddle {
namespace {

/// The rank so many places further on the axis, around.
int shifted(int rank, const MeshShape& mesh, Axis axis, int by) {
  const std::vector<int> line = mesh.group({axis}, rank);
  const int size = mesh.size(axis);
  return line[static_cast<std::size_t>((mesh.coord(axis, rank) + by + size) % size)];
}

}  // namespace

std::optional<Axis> copies_axis(const MeshShape& mesh, int zero) {
  if (mesh.size(Axis::pp) > 1) return Axis::pp;
  if (zero > 0 && mesh.size(Axis::dp) > 1) return Axis::dp;
  if (zero > 0 && mesh.size(Axis::cp) > 1) return Axis::cp;
  if (mesh.size(Axis::tp) > 1) return Axis::tp;
  return std::nullopt;
}

int keeper_of(int rank, const MeshShape& mesh, Axis axis) { return shifted(rank, mesh, axis, 1); }

PeerCopy::PeerCopy(const Model& own, Axis axis, const BuildOptions& options,
                   const OptimizerConfig& optimizer, Memory& memory)
    : axis_(axis),
      keeper_((own.mesh().coord(axis) + 1) % own.mesh().size(axis)),
      ward_((own.mesh().coord(axis) + own.mesh().size(axis) - 1) % own.mesh().size(axis)),
      mesh_(Mesh::recorded(own.mesh().shape(),
                           shifted(own.mesh().rank(), own.mesh().shape(), axis, -1))),
      model_(own.spec(), options, own.plan(), mesh_, ParamStore::Purpose::training, memory),
      optimizer_(make_optimizer(optimizer, model_.store())) {}

}  // namespace heddle
