// Weights of experts in both forms that files have: a tensor for each expert, and one for all.

#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "comm/threads/thread_world.h"
#include "engine/engine_testing.h"
#include "engine/expert_files.h"
#include "engine/weights.h"
#include "model/config_testing.h"
#include "ops/elementwise.h"
#include "support/temporary_folder.h"

namespace heddle {
namespace {

/// What each of so many tp ranks has after loading, by name.
std::vector<std::map<std::string, std::string>> loaded(const ModelSpec& spec, int tp,
                                                       const std::filesystem::path& folder) {
  std::vector<std::map<std::string, std::string>> by_rank(static_cast<std::size_t>(tp));
  run_ranks(tp, [&](World& world) {
    const ParallelPlan plan = make_plan(spec, {.tp = tp}, tp, 8);
    const Mesh mesh(plan.mesh, world.all());
    Memory memory;
    Stream stream(1);
    Model model(spec, {.positions = 8}, plan, mesh, ParamStore::Purpose::inference, memory);
    load_weights(HfFolder(folder), spec, model.store(), stream);
    for (const ParamPiece& piece : model.store().value_pieces()) {
      const Tensor copy = memory.alloc(piece.data.shape(), DType::f32, MemoryTag::data);
      ops::copy(piece.data, copy, stream);
      by_rank[static_cast<std::size_t>(world.rank())][piece.part->name] = bytes_of(copy);
    }
  });
  return by_rank;
}

TEST(ExpertWeights, AreReadInBothForms) {
  for (const char* family : {"mixtral", "olmoe", "qwen3_moe"}) {
    const ModelSpec spec = spec_of(
        with(small_config(family), {{"num_attention_heads", 4}, {"num_key_value_heads", 4}}));
    Memory memory;
    const Tensors tensors = random_weights(spec, memory);
    const TemporaryFolder one_each, one_for_all;
    write(tensors, one_each.path());
    write(stacked(spec, tensors, memory), one_for_all.path());
    for (const int tp : {1, 2}) {
      if (tp > 1 && spec.qk_norm_joins_heads) continue;
      const auto single = loaded(spec, tp, one_each.path());
      EXPECT_EQ(single, loaded(spec, tp, one_for_all.path())) << family;
      if (tp > 1) continue;
      for (const auto& [name, bytes] : single[0]) EXPECT_EQ(bytes, bytes_of(tensors.at(name)));
    }
  }
}

TEST(ExpertWeights, OfAnotherShapeOrTooManyAreNamed) {
  const ModelSpec spec = spec_of(small_config("qwen3_moe"));
  Memory memory;
  const Tensors tensors = random_weights(spec, memory);
  const auto refusal = [&](const Tensors& written) -> std::string {
    const TemporaryFolder folder;
    write(written, folder.path());
    try {
      loaded(spec, 1, folder.path());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      return error.what();
    }
    return "no refusal";
  };
  Tensors wide = stacked(spec, tensors, memory);
  wide["model.layers.1.mlp.experts.down_proj"] =
      memory.zeros({spec.experts->count, spec.hidden, 11}, DType::f32, MemoryTag::data);
  EXPECT_NE(
      refusal(wide).find("down_proj has shape [6, 24, 11], but config.json makes it [6, 24, 10]"),
      std::string::npos)
      << refusal(wide);
  // A router that knows an expert more than there are, and one that chooses by other features.
  for (const Shape& shape : {Shape{7, 24}, Shape{6, 23}}) {
    Tensors lying = tensors;
    lying["model.layers.0.mlp.gate.weight"] = memory.zeros(shape, DType::f32, MemoryTag::data);
    EXPECT_NE(refusal(lying).find(fmt::format(
                  "mlp.gate.weight has shape {}, but config.json makes it [6, 24]", shape.text())),
              std::string::npos)
        << refusal(lying);
  }
  Tensors many = tensors;
  many["model.layers.0.mlp.experts.6.up_proj.weight"] =
      tensors.at("model.layers.0.mlp.experts.5.up_proj.weight");
  EXPECT_NE(refusal(many).find("experts.6.up_proj.weight is not part"), std::string::npos)
      << refusal(many);
  Tensors few = tensors;
  few.erase("model.layers.0.mlp.experts.3.gate_proj.weight");
  EXPECT_NE(refusal(few).find("experts.3.gate_proj.weight"), std::string::npos) << refusal(few);
}

}  // namespace
}  // namespace heddle
