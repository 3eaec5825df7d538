#include "train/residuals.h"

#include <fmt/format.h>

#include "base/json.h"
#include "ops/elementwise.h"

namespace heddle {
namespace {

constexpr const char* kOfSum = "residual_of_sum";

std::string kind_of(int rank) { return fmt::format("residual.{}", rank); }

/// Adds up kinds of states in one tensor.
class ResidualReader {
 public:
  ResidualReader(const StateSource& source, Stream& stream) : source_(source), stream_(stream) {}

  /// piece = the sum of those that are there.
  void read(const ParamPiece& piece, const std::vector<std::string>& kinds) const {
    Stream on_host(stream_.threads());
    fill_from_host(piece, stream_, [&](const Tensor& to) {
      bool is_first = true;
      for (const std::string& kind : kinds) {
        if (source_.shape(kind, piece.part->name) != piece.part->whole) continue;
        if (std::exchange(is_first, false)) {
          read_box(piece, kind, to);
          continue;
        }
        Memory host;
        const Tensor more = host.alloc(to.shape(), to.dtype(), MemoryTag::workspace);
        read_box(piece, kind, more);
        ops::accumulate(more, to, on_host);
      }
      if (is_first) ops::fill(to, 0.0, on_host);
    });
  }

 private:
  void read_box(const ParamPiece& piece, const std::string& kind, const Tensor& to) const {
    source_.read(kind, piece.part->name, piece.begin.sizes(), piece.end().sizes(), to);
  }

  const StateSource& source_;
  Stream& stream_;
};

}  // namespace

std::vector<StateKind> residual_states(const ParamStore& store, const std::string& prefix) {
  auto residuals = store.residuals();
  if (!residuals) return {};
  std::vector<StateKind> states = {{prefix + kind_of(residuals->rank), std::move(residuals->own)}};
  if (!residuals->of_the_sum.empty()) {
    states.push_back({prefix + kOfSum, std::move(residuals->of_the_sum)});
  }
  return states;
}

Json describe_residuals(const ParallelPlan& plan) {
  const int ranks = plan.mesh.size(kTokenAxes);
  const auto codec = plan.compress.codec(Compression::Kind::gradients);
  if (codec == nullptr || ranks == 1 || !plan.compress.feeds_back()) return {};
  return {{"codec", codec->name()}, {"ranks", ranks}};
}

std::string restore_residuals(const StateSource& source, const Json& then, Model& model,
                              Stream& stream, const std::string& prefix) {
  const Json now = describe_residuals(model.plan());
  if (now.is_null()) {
    return then.is_null() ? ""
                          : "what encoding lost of gradients before is left behind: this run keeps "
                            "none of it";
  }
  if (then.is_null()) return "the checkpoint has no residuals of gradients: they begin with zeros";
  const auto codec_then = then.value("codec", std::string()),
             codec = now.at("codec").get<std::string>();
  if (codec_then != codec) {
    return fmt::format("compress.gradients was {} and is {}: residuals begin with zeros",
                       codec_then, codec);
  }
  const int ranks_then = then.value("ranks", 0), ranks = now.at("ranks").get<int>();
  if (auto residuals = model.store().residuals()) {
    std::vector<std::string> kinds;
    for (int rank = residuals->rank; rank < ranks_then; rank += ranks) {
      kinds.push_back(prefix + kind_of(rank));
    }
    const ResidualReader reader(source, stream);
    for (const ParamPiece& piece : residuals->of_the_sum) reader.read(piece, {prefix + kOfSum});
    if (residuals->of_the_sum.empty() && residuals->rank == 0) kinds.push_back(prefix + kOfSum);
    for (const ParamPiece& piece : residuals->own) reader.read(piece, kinds);
  }
  if (ranks_then == ranks) return "";
  return fmt::format(
      "residuals of gradients were those of {} ranks and are those of {}: their sum is the same",
      ranks_then, ranks);
}

}  // namespace heddle
