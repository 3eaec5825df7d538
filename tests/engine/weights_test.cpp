#include "engine/weights.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file_system.h"
#include "checkpoint/safetensors.h"
#include "comm/threads/thread_world.h"
#include "engine/engine_testing.h"
#include "engine/expert_files.h"
#include "model/config_testing.h"
#include "ops/cast.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

fs::path reference_model(const std::string& name) {
  return fs::path(source_dir()) / "tests" / "reference" / "models" / name;
}

/// What loading on so many tp ranks says, from a copy of a model in which one element is NaN.
std::string refusal(int tp, const std::string& tensor, std::size_t element) {
  const TemporaryFolder folder;
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy(reference_model("llama") / file, folder.path() / file);
  }
  const fs::path path = folder.path() / "model.safetensors";
  std::string bytes = read_text_file(path);
  {
    const SafetensorsFile opened(path);
    const auto at = static_cast<std::size_t>(opened.bytes(opened.entry(tensor)).data() -
                                             opened.file_bytes().data());
    const float poison = NAN;
    std::memcpy(&bytes[at + 4 * element], &poison, sizeof poison);
  }
  write_file_atomically(real_file_system(), path, bytes);
  try {
    run_ranks(tp, [&](World& world) {
      const ModelSpec spec = reference_spec("llama");
      const ParallelPlan plan = make_plan(spec, {.tp = tp}, tp, 8);
      const Mesh mesh(plan.mesh, world.all());
      Memory memory;
      Stream stream(1);
      Model model(spec, {.positions = 8}, plan, mesh, ParamStore::Purpose::inference, memory);
      load_weights(HfFolder(folder.path()), spec, model.store(), stream);
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    return error.what();
  }
  return "no refusal";
}

TEST(Weights, ElementsThatAreNotFiniteAreNamedByTheirPlaceInTheFile) {
  const ModelSpec spec = reference_spec("llama");
  const std::string down = "model.layers.1.mlp.down_proj.weight";  // tp divides its columns
  const std::string up = "model.layers.0.mlp.up_proj.weight";      // and the rows of this one
  for (const int tp : {1, 2}) {
    for (const std::int64_t row : {0, 3}) {
      for (const std::int64_t column : {1, 30}) {
        const auto element = static_cast<std::size_t>(row * spec.ffn + column);
        EXPECT_NE(refusal(tp, down, element).find("at element " + std::to_string(element) + ";"),
                  std::string::npos)
            << refusal(tp, down, element);
      }
    }
    const auto last = static_cast<std::size_t>(spec.ffn * spec.hidden - 1);
    EXPECT_NE(refusal(tp, up, last).find("at element " + std::to_string(last) + ";"),
              std::string::npos)
        << refusal(tp, up, last);
  }
}

/// What loading such a model from a file with these tensors says.
std::string refusal(const ModelSpec& spec, const Tensors& tensors) {
  const TemporaryFolder folder;
  write(tensors, folder.path());
  Memory memory;
  Stream stream(1);
  Model model(spec, {.positions = 8}, ParamStore::Purpose::inference, memory);
  try {
    load_weights(HfFolder(folder.path()), spec, model.store(), stream);
  } catch (const Error& error) {
    return error.what();
  }
  return "no refusal";
}

/// The same tensors with this in place of that, where names begin so.
Tensors renamed(const Tensors& tensors, const std::string& that, const std::string& by) {
  Tensors made;
  for (const auto& [name, tensor] : tensors) {
    made[name.starts_with(that) ? by + name.substr(that.size()) : name] = tensor;
  }
  return made;
}

TEST(Weights, OfATiedModelWithAnotherHeadAreRefusedWhateverItsType) {
  const ModelSpec spec = spec_of(with(small_config("llama"), {{"tie_word_embeddings", true}}));
  Memory memory;
  Stream stream(1);
  Tensors tensors = random_weights(spec, memory);
  const Tensor embedding = tensors.at("model.embed_tokens.weight");
  const auto said = [&](const Tensor& head) {
    tensors["lm_head.weight"] = head;
    const std::string of_bare_names = refusal(spec, renamed(tensors, "model.", ""));
    const std::string of_whole = refusal(spec, tensors);
    EXPECT_EQ(of_whole == "no refusal", of_bare_names == "no refusal") << of_bare_names;
    return of_whole;
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor head = memory.alloc(embedding.shape(), dtype, MemoryTag::data);
    ops::cast(embedding, head, stream);
    EXPECT_EQ(said(head), "no refusal");
  }
  const Tensor rounded = memory.alloc(embedding.shape(), DType::bf16, MemoryTag::data);
  ops::cast(embedding, rounded, stream);
  for (const Tensor& head : {rounded, embedding.slice(0, 0, embedding.size(0) - 1)}) {
    EXPECT_NE(said(head).find("lm_head.weight is not model.embed_tokens.weight, but config.json"),
              std::string::npos)
        << said(head);
  }
}

TEST(Weights, AreReadByTheNamesOfAModelWithoutItsHead) {
  for (const auto& [family, prefix] :
       {std::pair{"qwen3", "model."}, {"gpt2", "transformer."}, {"gpt_neox", "gpt_neox."}}) {
    const ModelSpec spec = spec_of(with(small_config(family), {{"tie_word_embeddings", true}}));
    Memory memory;
    const Tensors tensors = random_weights(spec, memory);
    EXPECT_EQ(refusal(spec, renamed(tensors, prefix, "")), "no refusal") << family;
  }
}

TEST(Weights, OfAHeadAreReadByTheNameInTransformers5) {
  const ModelSpec spec = spec_of(small_config("gpt_neox"));
  Memory memory;
  const Tensors tensors = random_weights(spec, memory);
  ASSERT_TRUE(tensors.contains("embed_out.weight"));
  EXPECT_EQ(refusal(spec, renamed(tensors, "embed_out", "lm_head")), "no refusal");
  EXPECT_NE(refusal(spec, renamed(tensors, "embed_out", "head")).find("embed_out.weight"),
            std::string::npos);
}

}  // namespace
}  // namespace heddle
