#include "engine/weights.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file_system.h"
#include "checkpoint/safetensors.h"
#include "comm/threads/thread_world.h"
#include "engine/engine_testing.h"
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

}  // namespace
}  // namespace heddle
