#include "verify/reference.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "comm/threads/thread_world.h"
#include "support/temporary_folder.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> own_references() {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(reference_folder() / "models")) {
    folders.push_back(entry.path());
  }
  return folders;
}

/// On one rank.
ReferenceReport verify_alone(const fs::path& folder, const ReferenceOptions& options) {
  ReferenceReport report;
  run_ranks(1, [&](World& world) { report = verify_reference(folder, options, world); });
  return report;
}

void expect_holds(const fs::path& folder, const ReferenceOptions& options) {
  const ReferenceReport report = verify_alone(folder, options);
  EXPECT_TRUE(report.ok()) << folder << ": " << to_json(report).dump(1);
}

TEST(Reference, IsThereForEveryFamily) {
  std::set<std::string> names;
  for (const auto& folder : own_references()) names.insert(folder.filename().string());
  for (const char* family : {"gpt2",
                             "llama",
                             "llama-linear-bias",
                             "mistral",
                             "qwen2",
                             "qwen3",
                             "gpt-neox",
                             "gpt-neox-sequential",
                             "olmo2",
                             "smollm3",
                             "granite",
                             "glm",
                             "glm4",
                             "phi3",
                             "phi3-longrope-beyond",
                             "starcoder2",
                             "gemma2",
                             "gemma3",
                             "llama-dynamic-beyond",
                             "llama-yarn-beyond",
                             "qwen2-window",
                             "mistral-window",
                             "heddle-moe"}) {
    EXPECT_TRUE(names.contains(family)) << family;
  }
}

TEST(Reference, HoldsForEveryFamily) {
  for (const auto& folder : own_references()) expect_holds(folder, {});
}

TEST(Reference, HoldsWithRecomputation) {
  for (const auto& folder : own_references()) expect_holds(folder, {.recompute = true});
}

TEST(Reference, HoldsOnTwoThreads) {
  for (const auto& folder : own_references()) expect_holds(folder, {.threads = 2});
}

TEST(Reference, HoldsForTheSharedFixtures) {
  const fs::path models = shared_folder() / "fixtures" / "models";
  if (!fs::exists(models)) GTEST_SKIP() << "no fixtures at " << models;
  for (const char* name : {"gpt2", "llama", "llama3-scaled-tied", "qwen2", "gpt-neox", "mixtral",
                           "olmoe", "qwen3-moe"}) {
    expect_holds(models / name, {.threads = 2});
  }
}

/// A copy of a reference in which one number is another one.
class SpoiledReference {
 public:
  SpoiledReference(const std::string& file, const std::string& tensor) {
    fs::copy(reference_folder() / "models" / "llama", folder_.path());
    const fs::path path = folder_.path() / file;
    std::string bytes = read_text_file(path);
    const SafetensorsFile opened(path);
    const auto& entry = opened.entry(tensor);
    const auto offset =
        static_cast<std::size_t>(opened.bytes(entry).data() - opened.file_bytes().data());
    if (opened.bytes(entry).size() % 8 == 0 && tensor == "greedy.output") {
      bytes[offset + opened.bytes(entry).size() - 8] ^= 1;  // the last id, 64-bit
    } else {
      float value;
      std::memcpy(&value, &bytes[offset], sizeof value);
      value += 0.5F;
      std::memcpy(&bytes[offset], &value, sizeof value);
    }
    write_file_atomically(real_file_system(), path, bytes);
  }
  ReferenceReport verify() const { return verify_alone(folder_.path(), {}); }

 private:
  TemporaryFolder folder_;
};

TEST(Reference, FailsWhenOneWeightIsAnother) {
  const auto report = SpoiledReference("model.safetensors", "model.norm.weight").verify();
  EXPECT_FALSE(report.ok());
  EXPECT_GT(report.logits_rel, 1e-5);
  EXPECT_GT(report.grad_rel, 1e-4);
  EXPECT_GT(report.train_loss_abs, 1e-4);
}

TEST(Reference, FailsAndNamesTheGradientThatIsAnother) {
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const auto report = SpoiledReference("reference.safetensors", "grad." + name).verify();
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.grad_worst, name);
}

TEST(Reference, FailsOnEachKindOfDifference) {
  for (const char* tensor : {"logits", "loss", "train.loss", "train.grad_norm", "greedy.output",
                             "trained.model.layers.0.self_attn.q_proj.weight"}) {
    EXPECT_FALSE(SpoiledReference("reference.safetensors", tensor).verify().ok()) << tensor;
  }
}

}  // namespace
}  // namespace heddle
