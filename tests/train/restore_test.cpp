#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "checkpoint/element_copy.h"
#include "train/run_state.h"
#include "train/small_rank.h"

namespace heddle {
namespace {

/// State that is in memory and nowhere else, as a peer would have it.
class InMemory : public StateSource {
 public:
  explicit InMemory(const Model& model) {
    for (const auto& [kind, pieces] : states_of(model.store())) {
      for (const ParamPiece& piece : pieces) tensors_[kind][piece.part->name] = copy_of(piece.data);
    }
  }
  void forget(const std::string& kind, const std::string& name) { tensors_[kind].erase(name); }

  std::string place() const override { return "the memory of rank 7"; }
  std::vector<std::string> names(std::string_view kind) const override {
    std::vector<std::string> names;
    const auto of_kind = tensors_.find(kind);
    if (of_kind == tensors_.end()) return names;
    for (const auto& [name, tensor] : of_kind->second) names.push_back(name);
    return names;
  }
  std::optional<Shape> shape(std::string_view kind, std::string_view name) const override {
    const auto of_kind = tensors_.find(kind);
    if (of_kind == tensors_.end()) return std::nullopt;
    const auto at = of_kind->second.find(std::string(name));
    return at == of_kind->second.end() ? std::nullopt : std::optional(at->second.shape());
  }
  void read(std::string_view kind, std::string_view name, std::span<const std::int64_t> begin,
            std::span<const std::int64_t>, const Tensor& out) const override {
    const Tensor& whole = tensors_.find(kind)->second.at(std::string(name));
    const std::vector<std::int64_t> origin(begin.size(), 0);
    copy_box(whole.bytes(), whole.dtype(), whole.shape(), begin, out, origin, out.shape().sizes());
  }

 private:
  Tensor copy_of(const Tensor& tensor) {
    const Tensor copy = memory_.alloc(tensor.shape(), tensor.dtype(), MemoryTag::data);
    const std::vector<std::int64_t> origin(static_cast<std::size_t>(tensor.dims()), 0);
    copy_box(tensor.bytes(), tensor.dtype(), tensor.shape(), origin, copy, origin,
             tensor.shape().sizes());
    return copy;
  }

  Memory memory_;
  std::map<std::string, std::map<std::string, Tensor>, std::less<>> tensors_;
};

constexpr int kBefore = 2, kAfter = 3;

TEST(RestoreState, FromMemoryContinuesOnAnotherMeshWithTheLossesOfOneRank) {
  run_ranks(1, [](World& world) {
    Rank whole({"one", 1, {}}, world);
    initialize(whole.model().store(), 3, whole.stream());
    for (int step = 0; step < kBefore; ++step) whole.train(step);
    const InMemory source(whole.model());
    std::vector<double> expected;
    for (int i = 0; i < kAfter; ++i) expected.push_back(whole.train(kBefore + i));

    const TestMesh mesh{"dp2_pp2_zero1", 4, {.pp = 2, .zero = 1}};
    run_ranks(mesh.ranks, [&](World& ranks) {
      Rank rank(mesh, ranks);
      restore_state(source, rank.model(), MissingStates::are_refused, rank.stream());
      for (int i = 0; i < kAfter; ++i) {
        EXPECT_NEAR(rank.train(kBefore + i), expected[static_cast<std::size_t>(i)], 1e-5);
      }
    });
  });
}

TEST(RestoreState, NamesTheSourceAndWhatItLacks) {
  run_ranks(1, [](World& world) {
    Rank rank({"one", 1, {}}, world);
    InMemory source(rank.model());
    source.forget("exp_avg", "model.norm.weight");
    try {
      restore_state(source, rank.model(), MissingStates::are_refused, rank.stream());
      ADD_FAILURE() << "restored what is not there";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_NE(std::string(error.what()).find("the memory of rank 7: exp_avg.model.norm.weight"),
                std::string::npos)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace heddle
