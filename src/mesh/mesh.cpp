#include "mesh/mesh.h"

#include <fmt/format.h>

#include <numeric>

#include "base/check.h"
#include "comm/record/record_communicator.h"
#include "comm/self/self_communicator.h"

namespace heddle {
namespace {

constexpr std::array<Axis, kAxes> kSlowestFirst = {Axis::pp, Axis::dp, Axis::cp, Axis::tp,
                                                   Axis::ep};

}  // namespace

MeshShape MeshShape::with(Axis axis, int size) const {
  MeshShape changed = *this;
  changed.sizes[static_cast<std::size_t>(axis)] = size;
  return changed;
}

int MeshShape::ranks() const {
  return std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies<>());
}

int MeshShape::coord(Axis axis, int rank) const {
  int below = 1;
  for (std::size_t i = kSlowestFirst.size(); kSlowestFirst[--i] != axis;) {
    below *= size(kSlowestFirst[i]);
  }
  return rank / below % size(axis);
}

std::string MeshShape::text() const {
  return fmt::format("dp={} tp={} pp={}", size(Axis::dp), size(Axis::tp), size(Axis::pp));
}

Mesh::Mesh() {
  make_groups([](int, int, int, const char*) -> std::unique_ptr<Communicator> {
    return std::make_unique<SelfCommunicator>();
  });
}

Mesh::Mesh(const MeshShape& shape, Communicator& world) : shape_(shape), rank_(world.rank()) {
  HEDDLE_CHECK(shape.ranks() == world.size(), "a mesh of {} ranks in a world of {}", shape.ranks(),
               world.size());
  make_groups([&](int color, int key, int size, const char* name) -> std::unique_ptr<Communicator> {
    // Splitting is collective, so all take part, also those whose group is only themselves.
    auto group = world.split(color, key, name);
    if (size == 1) return std::make_unique<SelfCommunicator>();
    return group;
  });
}

Mesh Mesh::recorded(const MeshShape& shape, int rank) {
  Mesh mesh;
  mesh.shape_ = shape;
  mesh.rank_ = rank;
  mesh.make_groups([](int, int key, int size, const char*) -> std::unique_ptr<Communicator> {
    if (size == 1) return std::make_unique<SelfCommunicator>();
    return std::make_unique<RecordCommunicator>(key, size);
  });
  return mesh;
}

/// `make` gives the group of the ranks with this color, of which the caller is number `key`.
void Mesh::make_groups(const MakeGroup& make) {
  for (const Axis axis : kSlowestFirst) {
    const int size = shape_.size(axis), key = shape_.coord(axis, rank_);
    // A group is named by its first rank: the one with coordinate 0 on the axis.
    int stride = 1;
    for (std::size_t i = kSlowestFirst.size(); kSlowestFirst[--i] != axis;) {
      stride *= shape_.size(kSlowestFirst[i]);
    }
    auto& comm = comms_[static_cast<std::size_t>(axis)];
    comm = size == 1 ? std::make_unique<SelfCommunicator>()
                     : make(rank_ - key * stride, key, size, name_of(axis));
  }
  copies_ = shape_.copies == 1
                ? std::make_unique<SelfCommunicator>()
                : make(rank_ / shape_.copies, rank_ % shape_.copies, shape_.copies, "tp copies");
  const auto [first, last] = shape_.ends;
  const int pp = shape_.coord(Axis::pp, rank_), others = shape_.ranks() / shape_.size(Axis::pp);
  if (first == last) {
    ends_ = std::make_unique<SelfCommunicator>();
  } else {
    // Ranks of other stages form groups too, since splitting needs everybody, but alone.
    const bool is_end = pp == first || pp == last;
    ends_ = make(is_end ? rank_ % others : shape_.ranks() + rank_, pp == last ? 1 : 0,
                 is_end ? 2 : 1, "pp ends");
  }
  lanes_.clear();
  for (int lane = 0; lane < shape_.lanes; ++lane) {
    lanes_.push_back(make(rank_ % others, pp, shape_.size(Axis::pp), "pp lane"));
  }
}

MeshTraffic Mesh::traffic() const {
  MeshTraffic traffic;
  for (std::size_t axis = 0; axis < kAxes; ++axis) traffic.by_axis[axis] = comms_[axis]->counts();
  traffic.copies = copies_->counts();
  traffic.ends = ends_->counts();
  for (const auto& lane : lanes_) traffic.lanes += lane->counts();
  return traffic;
}

bool Mesh::is_end() const {
  const int pp = shape_.coord(Axis::pp, rank_);
  return pp == shape_.ends[0] || pp == shape_.ends[1];
}

}  // namespace heddle
