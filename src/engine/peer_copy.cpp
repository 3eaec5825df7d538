#include "engine/peer_copy.h"

#include "ops/elementwise.h"

namespace heddle {
namespace {

/// The rank so many places further on the axis, around.
int shifted(int rank, const MeshShape& mesh, Axis axis, int by) {
  const std::vector<int> line = mesh.group({axis}, rank);
  const int size = mesh.size(axis);
  return line[static_cast<std::size_t>((mesh.coord(axis, rank) + by + size) % size)];
}

/// What encoding lost is the other's own: a copy gets sums, of which nothing is encoded.
ParallelPlan without_residuals(ParallelPlan plan) {
  plan.compress.error_feedback = false;
  return plan;
}

}  // namespace

std::optional<Axis> copies_axis(const MeshShape& mesh, int zero) {
  if (mesh.size(Axis::pp) > 1) return Axis::pp;
  if (zero > 0 && mesh.size(Axis::dp) > 1) return Axis::dp;
  if (zero > 0 && mesh.size(Axis::cp) > 1) return Axis::cp;
  if (mesh.size(Axis::tp) > 1) return Axis::tp;
  const bool has_experts_alone =
      mesh.size(Axis::ep) * mesh.size(Axis::etp) > 1 && mesh.size(Axis::edp) == 1;
  if (has_experts_alone) return mesh.size(Axis::dp) > 1 ? Axis::dp : Axis::cp;
  return std::nullopt;
}

std::optional<int> keeper_of(int rank, const MeshShape& mesh, Axis axis, KeptCopies which) {
  const bool is_kept = which == KeptCopies::all ||
                       (which == KeptCopies::first_stage && mesh.coord(Axis::pp, rank) == 0);
  return is_kept ? std::optional(shifted(rank, mesh, axis, 1)) : std::nullopt;
}

std::optional<int> ward_of(int rank, const MeshShape& mesh, Axis axis, KeptCopies which) {
  const int before = shifted(rank, mesh, axis, -1);
  return keeper_of(before, mesh, axis, which) ? std::optional(before) : std::nullopt;
}

PeerCopy::PeerCopy(const Model& own, Axis axis, const BuildOptions& options,
                   const OptimizerConfig& optimizer, Memory& memory)
    : mesh_(Mesh::recorded(own.mesh().shape(),
                           shifted(own.mesh().rank(), own.mesh().shape(), axis, -1))),
      model_(own.spec(), options, without_residuals(own.plan()), mesh_,
             ParamStore::Purpose::training, memory),
      optimizer_(make_optimizer(optimizer, model_.store())),
      needs_memory_(needs_whole_matrices(optimizer)),
      clip_(memory.alloc({1}, DType::f32, MemoryTag::optimizer)) {}

/// A GPU works behind the caller's back anyway. Memory that is asked for at another time than a dry
/// step asks for it would not be what was planned.
bool PeerCopy::updates_in_background(const Stream& stream) const {
  return stream.device().kind == Device::Kind::cpu && !stream.is_dry() && !needs_memory_;
}

void PeerCopy::update(const StepArgs& args, Stream& stream) {
  settle();
  StepArgs own = args;
  own.units = unit_rates_;
  own.clip = clip_;
  ops::copy(args.clip, clip_, stream);
  if (!updates_in_background(stream)) return optimizer_->step(own, stream);
  updating_ = std::async(std::launch::async, [this, own, threads = stream.threads()] {
    Stream background(threads);
    optimizer_->step(own, background);
  });
}

void make_copy(const Model& own, KeptCopies which, const BuildOptions& options,
               const OptimizerConfig& optimizer, Memory& memory, std::optional<PeerCopy>& kept) {
  const Mesh& mesh = own.mesh();
  const auto axis = copies_axis(mesh.shape(), own.plan().zero);
  if (!axis || !ward_of(mesh.rank(), mesh.shape(), *axis, which)) return;
  kept.emplace(own, *axis, options, optimizer, memory);
}

CopyExchange copy_exchange(const Mesh& mesh, int zero, KeptCopies which,
                           std::optional<PeerCopy>& kept) {
  const auto axis = copies_axis(mesh.shape(), zero);
  if (!axis) return {};
  const auto place = [&](std::optional<int> rank) {
    return rank ? std::optional(mesh.shape().coord(*axis, *rank)) : std::nullopt;
  };
  return {.axis = *axis,
          .keeper = place(keeper_of(mesh.rank(), mesh.shape(), *axis, which)),
          .ward = place(ward_of(mesh.rank(), mesh.shape(), *axis, which)).value_or(-1),
          .kept = kept ? &*kept : nullptr};
}

}  // namespace heddle
