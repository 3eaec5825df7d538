#include "data/demo_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace heddle {
namespace {

TEST(DemoLanguage, LongTextApproachesTheExactEntropyRate) {
  const DemoLanguage language;
  double nats = 0, bytes = 0;
  const auto documents = language.documents(1, 4'000'000);
  for (const DemoDocument& document : documents) {
    nats += document.nats;
    bytes += static_cast<double>(document.text.size());
  }
  const auto count = static_cast<double>(documents.size());
  EXPECT_NEAR(nats / bytes / language.nats_per_byte(), 1.0, 0.002);
  EXPECT_NEAR(nats / count / language.nats_per_document(), 1.0, 0.02);
  EXPECT_NEAR(bytes / count / language.bytes_per_document(), 1.0, 0.02);
}

TEST(DemoLanguage, ScoresItsOwnTextsExactlyAndNoOthers) {
  const DemoLanguage language;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const DemoDocument document = language.document(3, i);
    const auto nats = language.nats_of(document.text);
    ASSERT_TRUE(nats.has_value()) << document.text;
    EXPECT_NEAR(*nats, document.nats, 1e-9);
    EXPECT_FALSE(language.nats_of(document.text.substr(0, document.text.size() - 1)).has_value());
    EXPECT_FALSE(language.nats_of(document.text + " ").has_value());
  }
  EXPECT_FALSE(language.nats_of("Today Mira is in the garden. He sees a cat.").has_value());
  EXPECT_FALSE(language.nats_of("").has_value());
}

TEST(DemoLanguage, ProbabilitiesOfTheShortestStoriesSumToTheirShare) {
  // The shortest stories: no sentence between the first and the last.
  const DemoLanguage language;
  double probability = 0;
  std::set<std::string> texts;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const DemoDocument document = language.document(9, i);
    if (document.text.find(". At night") != document.text.find('.')) continue;
    if (texts.insert(document.text).second) probability += std::exp(-document.nats);
  }
  EXPECT_EQ(texts.size(), 36U);
  EXPECT_NEAR(probability, 0.15, 1e-9);
}

TEST(DemoLanguage, IsAPureFunctionOfSeedAndIndex) {
  const DemoLanguage language, again;
  EXPECT_EQ(language.document(5, 17).text, again.document(5, 17).text);
  EXPECT_EQ(language.documents(5, 1000).back().text,
            language.document(5, language.documents(5, 1000).size() - 1).text);
  EXPECT_NE(language.document(5, 17).text, language.document(6, 17).text);
}

}  // namespace
}  // namespace heddle
