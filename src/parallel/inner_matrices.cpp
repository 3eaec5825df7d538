// Where the slices of inner matrices lie: ParamStore::inner_matrices.
#include <algorithm>

#include "parallel/param_store.h"

namespace heddle {
namespace {

/// Where a piece that rank `here` has begins on rank `there`, which holds as many rows and columns.
Shape begin_on(int there, const ParamPiece& piece, const MeshShape& shape, int here) {
  const Layout& layout = piece.parameter->layout_of(*piece.part);
  Shape begin = piece.begin;
  for (const Axis axis : axes_of(layout.view)) {
    if (layout.on(axis).kind != Placement::Kind::shard) continue;
    const int dim = layout.on(axis).dim;
    const std::int64_t further = shape.coord(axis, there) - shape.coord(axis, here);
    begin.set(dim, begin[dim] + further * piece.part->extent[dim]);
  }
  return begin;
}

}  // namespace

std::vector<ParamStore::InnerMatrix> ParamStore::inner_matrices() const {
  std::vector<InnerMatrix> matrices;
  for (const Bucket& bucket : buckets_) {
    for (const Placed& placed : bucket.placed) {
      if (bucket.trains && placed.parameter->is_inner_matrix())
        add_slices(bucket, placed, matrices);
    }
  }
  return matrices;
}

/// Every rank of the group lays the parameter out alike, so what another one holds is what this one
/// would hold there: other elements of the flat buffer, where state is divided, and boxes that lie
/// farther along the dimensions that the layout shards.
void ParamStore::add_slices(const Bucket& bucket, const Placed& placed,
                            std::vector<InnerMatrix>& matrices) const {
  const Parameter& parameter = *placed.parameter;
  const MeshShape& shape = mesh_.shape();
  const AxisSet divided = bucket.zero > 0 ? ownership(parameter.layout).divides : AxisSet{};
  AxisSet group = divided;
  for (const Axis axis : axes_of(parameter.layout.view)) {
    if (parameter.layout.on(axis).kind == Placement::Kind::shard) group = group.with(axis);
  }
  group = shape.occupied(group);
  const auto before = static_cast<std::ptrdiff_t>(matrices.size());
  const auto of = [&](const std::string& name) -> InnerMatrix& {
    const auto found = std::find_if(matrices.begin() + before, matrices.end(),
                                    [&](const InnerMatrix& matrix) { return matrix.name == name; });
    return found != matrices.end() ? *found : matrices.emplace_back();
  };
  Memory nothing(Memory::Mode::dry);
  const Tensor elsewhere = nothing.alloc({bucket.size}, grad_dtype(), MemoryTag::workspace);
  const std::vector<int> members = shape.group(group, mesh_.rank());
  for (std::size_t holder = 0; holder < members.size(); ++holder) {
    const int rank = members[holder];
    const bool is_here = rank == mesh_.rank();
    Range range = bucket.held;
    if (!divided.empty()) {
      const auto peers = shape.group(divided, rank);
      const std::int64_t shard = bucket.held.end - bucket.held.begin;
      range.begin = shard * (std::ranges::find(peers, rank) - peers.begin());
      range.end = range.begin + shard;
    }
    std::vector<ParamPiece> pieces;
    const bool is_whole = !is_here || bucket.grads.count() == bucket.size;
    add_pieces(placed, is_here ? bucket.grads : elsewhere, is_whole ? 0 : bucket.held.begin, range,
               false, false, pieces);
    for (const ParamPiece& piece : pieces) {
      InnerMatrix& matrix = of(piece.part->name);
      if (matrix.name.empty()) {
        matrix.name = piece.part->name;
        matrix.shape = piece.part->whole;
        matrix.unit = bucket.owner;
        matrix.group = group;
      }
      matrix.slices.push_back({static_cast<int>(holder), begin_on(rank, piece, shape, mesh_.rank()),
                               piece.data.shape(), is_here ? piece.data : Tensor()});
    }
  }
}

}  // namespace heddle
