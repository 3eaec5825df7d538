#include "config/explain.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/error_text.h"

namespace heddle::config {
namespace {

TEST(Explain, AKeyHasTypeDefaultMeaningAndForeignNames) {
  EXPECT_EQ(explain(*find_key("optim.schedule")),
            "optim.schedule  (one of constant, linear, cosine, wsd)\n"
            "  default: \"cosine\"\n"
            "  how the learning rate falls from lr to min_lr\n"
            "  constant: it does not; linear and cosine: from the end of the warm-up to the last "
            "step;\n"
            "  wsd (warm-up, stable, decay): linearly over the last optim.decay_steps.\n"
            "  the same on all ranks; changing it on resuming needs --accept-changes\n"
            "  elsewhere: lr_decay_style, lr_scheduler_type, lr_scheduler, decay_type\n");
}

TEST(Explain, TakesAKeyASectionOrAll) {
  EXPECT_EQ(keys_named("optim.lr").size(), 1U);
  EXPECT_EQ(keys_named("observe").size(), 6U);
  EXPECT_EQ(keys_named("all").size(), keys().size());
}

TEST(Explain, AnUnknownNameGivesTheNearest) {
  const std::pair<const char*, const char*> cases[] = {
      {"optm.lr", "unknown key optm.lr; did you mean optim.lr?"},
      {"lr", "unknown key lr; did you mean optim.lr?"},
      {"learning-rate", "unknown key learning-rate; did you mean optim.lr?"},
      {"paralel", "unknown key paralel; did you mean [parallel]?"},
  };
  for (const auto& [what, message] : cases) {
    try {
      keys_named(what);
      FAIL() << what;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_STREQ(e.what(), message);
    }
  }
}

TEST(DescribeRun, ShowsEveryKeyItsOriginAndWhatFollows) {
  const auto text = describe_run(parse_run(kGoodRun, "run.toml", {"train.tokens_per_step=1024"}));
  for (const auto& key : keys()) {
    EXPECT_NE(text.find(key.full_name() + " "), std::string::npos) << key.full_name();
  }
  EXPECT_NE(text.find("run.toml:5\n"), std::string::npos) << text;
  EXPECT_NE(text.find("100 steps of 1024 tokens: 4 micro-batches of 1 x 256; 102.4k tokens in all\n"
                      "run folder runs/run\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace heddle::config
