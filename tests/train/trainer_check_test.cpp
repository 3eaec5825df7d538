#include "train/trainer_check.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "model/registry.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

/// A forged manifest of a checkpoint, with the COMMIT that belongs to it.
void forge(const std::filesystem::path& checkpoint, const Json& trainer) {
  Json manifest = parse_json(read_text_file(checkpoint / kManifestFile), "manifest");
  manifest["trainer"] = trainer;
  const std::string text = manifest.dump(2) + "\n";
  write_file_atomically(real_file_system(), checkpoint / kManifestFile, text);
  write_file_atomically(real_file_system(), checkpoint / kCommitFile, commit_text(text));
}

TEST(TrainerCheck, ARunRefusesAForgedManifestByFileAndKey) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  const auto checkpoint = run.checkpoint(10);
  const Json trainer =
      parse_json(read_text_file(checkpoint / kManifestFile), "manifest").at("trainer");
  const std::pair<std::string, Json> forged[] = {{"skipped_updates", "one"},
                                                 {"seconds", Json::array()},
                                                 {"best_eval_loss", nullptr},
                                                 {"optimizer", {{"frozen_at", "soon"}}},
                                                 {"residuals", {{"codec", 3}}},
                                                 {"sites", {0, 1}},
                                                 {"skipped_updates_by_site", Json::array()},
                                                 {"made_anew", {{"1", 2}}},
                                                 {"left_out", {1, 2}},
                                                 {"expert_load", {1.0}}};
  for (const auto& [key, value] : forged) {
    Json changed = trainer;
    changed[key] = value;
    forge(checkpoint, changed);
    const Outcome resumed = run.train({"train.steps=12"}, {"--accept-changes"});
    EXPECT_EQ(resumed.status, 5) << key << ": " << resumed.err;
    EXPECT_NE(resumed.err.find(fmt::format("{}: \"trainer.{}\" is not",
                                           (checkpoint / kManifestFile).string(), key)),
              std::string::npos)
        << resumed.err;
    EXPECT_NE(resumed.err.find("--fresh"), std::string::npos) << resumed.err;
  }
  forge(checkpoint, trainer);
  EXPECT_EQ(run.train({"train.steps=12"}, {"--accept-changes"}).status, 0);
}

/// Like one without "trainer": the folder counts as damaged, and an older one is taken.
TEST(TrainerCheck, ATrainerThatIsNoObjectIsSaidAndAnOlderCheckpointTaken) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  forge(run.checkpoint(10), "none");
  const Outcome resumed = run.train();
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("manifest.json: \"trainer\" is not an object"), std::string::npos)
      << resumed.err;
  EXPECT_NE(resumed.err.find("step 10/10"), std::string::npos) << resumed.err;
}

class TrainerOfAManifest : public ::testing::Test {
 protected:
  /// What is said of it; "" of one that is taken.
  std::string refusal(const std::string& key, const Json& value) const {
    Json trainer = {{"skipped_updates", 1}, {"seconds", 2}, {"residuals", nullptr}};
    trainer[key] = value;
    Manifest manifest;
    manifest.trainer = std::make_shared<const Json>(std::move(trainer));
    try {
      check_trainer(manifest, spec_, "step-000010");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      return error.what();
    }
    return "";
  }

  const ModelSpec spec_ = model_spec({{"model_type", "mixtral"},
                                      {"hidden_size", 32},
                                      {"intermediate_size", 64},
                                      {"num_hidden_layers", 2},
                                      {"num_attention_heads", 4},
                                      {"num_key_value_heads", 4},
                                      {"max_position_embeddings", 64},
                                      {"vocab_size", 61},
                                      {"num_local_experts", 2},
                                      {"num_experts_per_tok", 1},
                                      {"rms_norm_eps", 1e-5}},
                                     "a test");
};

TEST_F(TrainerOfAManifest, MayHoldWhatRunsWrite) {
  EXPECT_EQ(refusal("seconds", 0.5), "");
  EXPECT_EQ(refusal("identity", Json::object()), "");
  EXPECT_EQ(refusal("optimizer", {{"earlier_sum", 0.25}, {"frozen_at", 7}}), "");
  EXPECT_EQ(refusal("residuals", {{"codec", "onebit"}, {"ranks", 4}}), "");
  EXPECT_EQ(refusal("skipped_updates_by_site", {0, 3}), "");
  EXPECT_EQ(refusal("made_anew", std::map<int, std::int64_t>{{1, 4}}), "");
  EXPECT_EQ(
      refusal(
          "left_out",
          Json::array(
              {{{"begin", 1}, {"end", 2}, {"before", 0}, {"after", 0}, {"weights", {0.0, 0.5}}}})),
      "");
  EXPECT_EQ(refusal("expert_load", std::vector<double>(8, 1.0)), "");
  EXPECT_EQ(refusal("of a later version", "anything"), "");
}

TEST_F(TrainerOfAManifest, MayHoldNoNumbersOutOfTheirRange) {
  for (const auto& [key, value] :
       {std::pair<std::string, Json>{"skipped_updates", -1},
        {"skipped_updates", 1.5},
        {"skipped_updates", UINT64_MAX},
        {"optimizer", {{"frozen_at", -1}}},
        {"optimizer", {{"frozen_at", 1e300}}},
        {"residuals", {{"codec", "onebit"}, {"ranks", 1u << 31}}},
        {"made_anew", std::map<int, std::int64_t>{{2, 4}}},
        {"left_out",
         Json::array(
             {{{"begin", 1}, {"end", 3}, {"before", 0}, {"after", 0}, {"weights", {0.0, 0.5}}}})},
        {"expert_load", std::vector<double>(7, 1.0)}}) {
    EXPECT_NE(refusal(key, value).find("step-000010/manifest.json: \"trainer." + key + "\" is not"),
              std::string::npos)
        << key;
  }
}

}  // namespace
}  // namespace heddle
