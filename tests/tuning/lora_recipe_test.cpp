// Adapters against PyTorch and PEFT: tests/reference/make_lora_recipes.py made the files.

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/file_system.h"
#include "checkpoint/convert.h"
#include "comm/threads/thread_world.h"
#include "engine/adapters.h"
#include "engine/model.h"
#include "support/temporary_folder.h"
#include "tensor/transfer.h"
#include "verify/difference.h"
#include "verify/recipe.h"
#include "verify/reference_file.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

fs::path recipe(const std::string& name) { return reference_folder() / "recipes" / name; }

struct RecipeCase {
  std::string name, recipe;
  ParallelRequest mesh = {};
  bool recomputes = false;
};

void PrintTo(const RecipeCase& one, std::ostream* out) { *out << one.name; }

using Vocabulary = VocabularyPlacement;

const RecipeCase kCases[] = {
    {"Llama", "lora-llama", {.zero = 0}},
    {"LlamaZero1", "lora-llama", {.zero = 1}},
    {"LlamaZero2", "lora-llama", {.zero = 2}},
    {"LlamaZero3", "lora-llama", {.zero = 3}},
    {"LlamaRecomputed", "lora-llama", {.zero = 1}, true},
    {"LlamaTp", "lora-llama", {.tp = 2, .zero = 1}},
    {"LlamaTpSequence", "lora-llama", {.tp = 2, .zero = 3, .sequence = true}},
    {"LlamaTpBeyondKeyHeads", "lora-llama", {.tp = 4, .zero = 2, .sequence = true}},
    {"LlamaPp", "lora-llama", {.pp = 2, .zero = 2}},
    {"LlamaPpVocabulary", "lora-llama", {.pp = 2, .zero = 1, .vocabulary = Vocabulary::pipeline}},
    {"LlamaZeroBubble", "lora-llama", {.pp = 2, .zero = 3, .schedule = Pipeline::zb_h1}},
    {"LlamaCp", "lora-llama", {.cp = 2, .zero = 1}},
    {"LlamaSome", "lora-llama-some", {.zero = 1}},
    {"LlamaSomeTpPpTied", "lora-llama-some", {.tp = 2, .pp = 2, .zero = 1, .sequence = true}},
    {"LlamaSomeVocabulary",
     "lora-llama-some",
     {.pp = 2, .zero = 3, .vocabulary = Vocabulary::pipeline}},
    {"Dropout", "lora-dropout", {.zero = 1}},
    {"DropoutRecomputed", "lora-dropout", {.zero = 3}, true},
    {"DropoutTp", "lora-dropout", {.tp = 2, .zero = 1}},
    {"DropoutTpSequence", "lora-dropout", {.tp = 4, .zero = 2, .sequence = true}, true},
    {"DropoutZeroBubble", "lora-dropout", {.pp = 2, .zero = 3, .schedule = Pipeline::zb_h1}},
    {"DropoutCp", "lora-dropout", {.cp = 2, .zero = 1}},
    {"DropoutCpTpPp", "lora-dropout", {.tp = 2, .pp = 2, .cp = 2, .zero = 1}},
    {"Gpt2", "lora-gpt2", {.zero = 1}},
    {"Gpt2Tp", "lora-gpt2", {.tp = 2, .zero = 3, .sequence = true}, true},
    {"Gpt2Pp", "lora-gpt2", {.pp = 2, .zero = 2}},
    {"Phi3", "lora-phi3", {.zero = 1}},
    {"Phi3Tp", "lora-phi3", {.tp = 2, .zero = 1, .sequence = true}},
    {"Phi3TpBeyondKeyHeads", "lora-phi3", {.tp = 4, .zero = 1}},
};

class LoraRecipe : public testing::TestWithParam<RecipeCase> {};

TEST_P(LoraRecipe, TrainsAsPeftDoes) {
  const auto& [name, folder, mesh, recomputes] = GetParam();
  config::RunConfig settings;
  settings.parallel = mesh;
  if (recomputes) settings.train.recompute = config::Recompute::block;
  RecipeReport report;
  run_ranks(2 * mesh.tp * mesh.pp * mesh.cp, [&](World& world) {
    const auto own = verify_recipe(recipe(folder), settings, {}, world);
    if (world.rank() == 0) report = own;
  });
  EXPECT_TRUE(report.ok()) << to_json(report).dump(1);
  EXPECT_GT(report.trained_rel, 0.0) << "nothing was compared";
}

INSTANTIATE_TEST_SUITE_P(Peft, LoraRecipe, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

/// Of the model and its adapters against what PEFT has made of them.
double logits_difference(const StoredModel& stored, const fs::path& folder) {
  Memory memory;
  Stream stream(1);
  const ReferenceFile reference(folder, memory);
  const Tensor ids = reference.ids("input_ids"), expected = reference.floats("logits");
  Model model(stored.spec, {.positions = ids.size(1)}, ParamStore::Purpose::inference, memory);
  load_stored_model(stored, model.store(), stream, {.is_silent = true});
  const Tensor logits =
      model.logits(plain_batch(ids, {}, 0, memory), false, nullptr, stream, memory);
  Difference difference;
  difference.add(logits.host<float>(), expected.host<float>());
  return difference.relative();
}

class LoraFolder : public testing::TestWithParam<std::string> {};

TEST_P(LoraFolder, OfPeftGivesItsLogits) {
  const fs::path folder = recipe(GetParam());
  EXPECT_LT(logits_difference(open_stored_model(folder, folder / "trained"), folder), 1e-5);
  EXPECT_GT(logits_difference(open_stored_model(folder, folder / "adapter"), folder), 1e-4)
      << "other adapters make no difference";
}

TEST_P(LoraFolder, MergedByConvertGivesTheSameLogits) {
  const fs::path folder = recipe(GetParam());
  const TemporaryFolder out;
  const StoredModel model = open_stored_model(folder, folder / "trained");
  const fs::path merged = out.path() / "merged";
  const ConvertReport report =
      convert(real_file_system(), model.base, merged, {.updates = merged_updates(model)});
  EXPECT_TRUE(report.warnings.empty());
  EXPECT_LT(logits_difference(open_stored_model(merged, {}), folder), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Peft, LoraFolder,
                         testing::Values("lora-llama", "lora-llama-some", "lora-dropout",
                                         "lora-gpt2", "lora-phi3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(LoraFolders, AreWrittenAsPeftReadsThem) {
  const fs::path folder = recipe("lora-gpt2");
  const StoredModel model = open_stored_model(folder, folder / "trained");
  const TemporaryFolder out;
  write_file_atomically(real_file_system(), out.path() / kAdapterConfigFile,
                        adapter_config_text(adapter_config(model.spec, folder.string())));
  fs::copy_file(folder / "trained" / "adapter_model.safetensors",
                out.path() / "adapter_model.safetensors");
  const AdapterFolder again(out.path());
  EXPECT_EQ(again.config().rank, 2);
  EXPECT_EQ(again.config().alpha, 4.0);
  EXPECT_TRUE(again.config().are_in_out);
  // Such a folder leads to its base by itself.
  EXPECT_LT(logits_difference(open_stored_model(out.path(), {}), folder), 1e-5);
}

void expect_refusal(const fs::path& model, const fs::path& adapter, const std::string& words) {
  try {
    const StoredModel stored = open_stored_model(model, adapter);
    Memory memory;
    Stream stream(1);
    Model made(stored.spec, {.positions = 8}, ParamStore::Purpose::inference, memory);
    load_stored_model(stored, made.store(), stream, {.is_silent = true});
    FAIL() << "no error about " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(LoraFolders, OfAnotherBaseAreRefusedByName) {
  expect_refusal(recipe("lora-llama"), recipe("lora-gpt2") / "trained",
                 "transformer.h.0.attn.c_attn is no linear layer in a block of this llama model");
  expect_refusal(reference_folder() / "models" / "llama", recipe("lora-llama") / "trained",
                 "q_proj.lora_A.weight has shape");
  expect_refusal(recipe("lora-llama"), recipe("lora-llama"), "has no adapter_config.json");
  expect_refusal(recipe("lora-llama") / "trained", {}, "\"base\", which is no folder here");
}

/// The folder of trained adapters with something else in its config.
void expect_config_refusal(const std::string& from, const std::string& to,
                           const std::string& words) {
  const TemporaryFolder folder;
  fs::copy(recipe("lora-llama") / "trained", folder.path());
  const fs::path file = folder.path() / kAdapterConfigFile;
  std::string text = read_text_file(file);
  const auto at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  write_file_atomically(real_file_system(), file, text);
  expect_refusal(recipe("lora-llama"), folder.path(), words);
}

TEST(LoraFolders, ThatAreNotUnderstoodAreRefusedByName) {
  expect_config_refusal("\"use_dora\": false", "\"use_dora\": true", "use_dora = true");
  expect_config_refusal("\"bias\": \"none\"", "\"bias\": \"all\"", "bias = \"all\"");
  expect_config_refusal("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 2}",
                        "rank_pattern");
  expect_config_refusal("\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]",
                        "modules_to_save");
  expect_config_refusal("\"modules_to_save\": null",
                        "\"modules_to_save\": null, \"alora_invocation_tokens\": [3]",
                        "alora_invocation_tokens");
  expect_config_refusal("\"use_bdlora\": null", "\"use_bdlora\": {\"nblocks\": 2}",
                        "use_bdlora = {\"nblocks\":2} is not supported");
  for (const char* init : {"pissa_niter_4", "olora", "OLoRA"}) {
    expect_config_refusal(
        "\"modules_to_save\": null",
        fmt::format("\"modules_to_save\": null, \"init_lora_weights\": \"{}\"", init),
        fmt::format("init_lora_weights = \"{}\" goes with other weights", init));
  }
  expect_config_refusal("\"peft_type\": \"LORA\"", "\"peft_type\": \"IA3\"", "kind IA3");
  expect_config_refusal("\"r\": 4", "\"r\": 0", "r = 0 is no rank");
  expect_config_refusal("\"lora_dropout\": 0.0", "\"lora_dropout\": 1.0",
                        "lora_dropout = 1 is no share to drop");
}

}  // namespace
}  // namespace heddle
