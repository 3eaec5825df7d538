#include "mesh/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

#include "base/check.h"
#include "comm/record/record_communicator.h"
#include "comm/self/self_communicator.h"

namespace heddle {
namespace {

/// The sets of axes that have a communicator: every single axis in use, what ZeRO divides over, and
/// where matrices are brought together the ranks of a stage, and of an expert.
std::vector<AxisSet> sets_in_use(const MeshShape& shape) {
  std::vector<AxisSet> sets;
  for (const Axis axis : axes_of(View::dense)) sets.push_back({axis});
  if (shape.size(Axis::copy) > 1) sets.push_back({Axis::copy});
  if (shape.size({Axis::ep, Axis::etp}) > 1) {
    for (const Axis axis : {Axis::edp, Axis::ep, Axis::etp}) sets.push_back({axis});
  }
  if (shape.occupied(kTokenAxes).count() > 1) sets.push_back(kTokenAxes);
  const AxisSet of_expert{Axis::edp, Axis::etp};
  if (shape.joins_stages && shape.occupied(of_expert).count() > 1) sets.push_back(of_expert);
  const AxisSet stage = shape.occupied(kStageAxes);
  const bool is_new = stage.count() > 1 && stage != shape.occupied(kTokenAxes);
  if (shape.joins_stages && is_new) sets.push_back(stage);
  return sets;
}

}  // namespace

MeshTraffic operator-(MeshTraffic after, MeshTraffic before) {
  after.with(before, [](const char*, CommCounts& a, const CommCounts& b) {
    for (std::size_t op = 0; op < kCommOps; ++op) {
      const auto& [calls, payload, wire] = b.by_op[op];
      a.by_op[op].add(-calls, -payload, -wire);
    }
  });
  return after;
}

Mesh::Mesh() : flight_(std::make_shared<FlightRecorder>()) {
  make_groups([](const std::vector<int>&, const std::string&) -> std::unique_ptr<Communicator> {
    return std::make_unique<SelfCommunicator>();
  });
}

Mesh::Mesh(const MeshShape& shape, Communicator& world)
    : shape_(shape), rank_(world.rank()), flight_(world.shared_flight()) {
  HEDDLE_CHECK(shape.ranks() == world.size(), "a mesh of {} ranks in a world of {}", shape.ranks(),
               world.size());
  if (shape.size(Axis::site) > 1) flight_->set_place(fmt::format("site {}", coord(Axis::site)));
  make_groups([&](const std::vector<int>& members,
                  const std::string& name) -> std::unique_ptr<Communicator> {
    // Splitting is collective, so all take part, also those whose group is only themselves.
    const auto own = std::ranges::find(members, rank_);
    auto group = world.split(members.front(), static_cast<int>(own - members.begin()), name);
    if (members.size() == 1) return std::make_unique<SelfCommunicator>();
    return group;
  });
}

Mesh Mesh::recorded(const MeshShape& shape, int rank) {
  Mesh mesh;
  mesh.shape_ = shape;
  mesh.rank_ = rank;
  mesh.make_groups(
      [&](const std::vector<int>& members, const std::string&) -> std::unique_ptr<Communicator> {
        if (members.size() == 1) return std::make_unique<SelfCommunicator>();
        const auto own = std::ranges::find(members, rank);
        return std::make_unique<RecordCommunicator>(static_cast<int>(own - members.begin()),
                                                    static_cast<int>(members.size()));
      });
  return mesh;
}

/// `make` gives the communicator of these ranks, of which the caller is one. What is made, and in
/// which order, is the same on every rank.
void Mesh::make_groups(const MakeGroup& make) {
  groups_.clear();
  self_ = std::make_unique<SelfCommunicator>();
  for (const AxisSet axes : sets_in_use(shape_)) {
    groups_[axes] = shape_.size(axes) == 1 ? std::make_unique<SelfCommunicator>()
                                           : make(shape_.group(axes, rank_), to_text(axes));
  }
  const auto pipeline = shape_.group({Axis::pp}, rank_);
  const auto [first, last] = shape_.ends;
  if (first == last) {
    ends_ = std::make_unique<SelfCommunicator>();
  } else {
    const auto at = [&](int pp) { return pipeline[static_cast<std::size_t>(pp)]; };
    ends_ = make(is_end() ? std::vector{at(first), at(last)} : std::vector{rank_}, "pp ends");
  }
  lanes_.clear();
  for (int lane = 0; lane < shape_.lanes; ++lane) lanes_.push_back(make(pipeline, "pp lane"));
}

Communicator& Mesh::group(AxisSet axes) const {
  auto found = groups_.find(axes);
  if (found == groups_.end()) found = groups_.find(shape_.occupied(axes));
  if (found == groups_.end() && shape_.size(axes) == 1) return *self_;
  HEDDLE_CHECK(found != groups_.end(), "there is no communicator over {}", to_text(axes));
  return *found->second;
}

void Mesh::sum(const Tensor& inout, AxisSet axes, Stream& stream) const {
  const auto order = axes_of(view_of(axes));
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    if (!axes.contains(*axis) || size(*axis) == 1) continue;
    comm(*axis).all_reduce(inout, ReduceOp::sum, stream).wait(stream);
  }
}

double Mesh::largest(double value, AxisSet axes) const {
  for (const Axis axis : axes_of(view_of(axes))) {
    if (axes.contains(axis) && size(axis) > 1) value = comm(axis).combine(value, ReduceOp::max);
  }
  return value;
}

void Mesh::check() const {
  for (const auto& [axes, comm] : groups_) comm->check();
}

MeshTraffic Mesh::traffic() const {
  MeshTraffic traffic;
  for (const auto& [axes, comm] : groups_) {
    for (int axis = 0; axis < kAxes; ++axis) {
      if (axes == AxisSet{static_cast<Axis>(axis)}) {
        traffic.on(static_cast<Axis>(axis)) = comm->counts();
      }
    }
    if (axes.count() > 1) traffic.groups += comm->counts();
  }
  traffic.ends = ends_->counts();
  for (const auto& lane : lanes_) traffic.lanes += lane->counts();
  return traffic;
}

bool Mesh::is_end() const {
  const int pp = coord(Axis::pp);
  return pp == shape_.ends[0] || pp == shape_.ends[1];
}

}  // namespace heddle
