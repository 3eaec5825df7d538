#include "engine/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/engine_testing.h"
#include "ops/softmax_xent.h"

namespace heddle {
namespace {

/// A model in double precision whose weights are large enough for documents to matter.
class ExactModel {
 public:
  explicit ExactModel(const std::string& name)
      : model(reference_spec(name), {.dtype = DType::f64, .positions = 32},
              ParamStore::Purpose::inference, memory) {
    initialize(model.store(), 3, stream);
    for (Parameter* p : model.store().parameters()) {
      if (!p->is_matrix()) continue;
      for (double& value : p->value.host<double>()) value *= 10.0;
    }
  }

  std::vector<double> logits(const MicroBatch& batch, KvCache* cache = nullptr) {
    const Tensor made = model.logits(batch, false, cache, stream, memory);
    return {made.host<double>().begin(), made.host<double>().end()};
  }

  MicroBatch alone(const Tensor& ids, std::int64_t first_position = 0) {
    return plain_batch(ids, {}, first_position, memory);
  }

  Memory memory;
  Stream stream{1};
  Model model;
};

void expect_near(std::span<const double> have, std::span<const double> want) {
  ASSERT_EQ(have.size(), want.size());
  for (std::size_t i = 0; i < have.size(); ++i) {
    ASSERT_NEAR(have[i], want[i], 1e-10 * std::max(1.0, std::abs(want[i]))) << "logit " << i;
  }
}

class EveryModel : public testing::TestWithParam<const char*> {};

TEST_P(EveryModel, GivesPackedDocumentsTheLogitsTheyHaveAlone) {
  ExactModel m(GetParam());
  constexpr std::int64_t kFirst = 7, kSecond = 12, kAll = kFirst + kSecond;
  const Tensor ids = random_ids(1, kAll, m.model.spec().vocab, 9, m.memory);
  MicroBatch packed = m.alone(ids);
  packed.first_key = m.memory.zeros({1, kAll}, DType::i32, MemoryTag::data);
  for (std::int64_t s = kFirst; s < kAll; ++s) {
    packed.positions.host<std::int32_t>()[static_cast<std::size_t>(s)] =
        static_cast<std::int32_t>(s - kFirst);
    packed.first_key.host<std::int32_t>()[static_cast<std::size_t>(s)] = kFirst;
  }
  const auto together = m.logits(packed);
  auto apart = m.logits(m.alone(ids.slice(1, 0, kFirst)));
  const auto second = m.logits(m.alone(ids.slice(1, kFirst, kAll)));
  apart.insert(apart.end(), second.begin(), second.end());
  expect_near(together, apart);
  const auto unmasked = m.logits(m.alone(ids));
  EXPECT_GT(std::abs(unmasked.back() - together.back()), 1e-6) << "the mask makes no difference";
}

TEST_P(EveryModel, GivesTheSameLogitsWhenThePromptComesInChunks) {
  ExactModel m(GetParam());
  constexpr std::int64_t kLength = 19;
  const Tensor ids = random_ids(1, kLength, m.model.spec().vocab, 4, m.memory);
  const auto whole = m.logits(m.alone(ids));
  for (const std::int64_t chunk : {1, 4, 18, 19}) {
    KvCache cache(m.model.cache_shape(1, kLength), m.memory);
    std::vector<double> in_chunks;
    for (std::int64_t at = 0; at < kLength; at += chunk) {
      const std::int64_t end = std::min(kLength, at + chunk);
      const auto part = m.logits(m.alone(ids.slice(1, at, end), at), &cache);
      in_chunks.insert(in_chunks.end(), part.begin(), part.end());
    }
    EXPECT_EQ(cache.length(), kLength);
    expect_near(in_chunks, whole);
  }
}

TEST_P(EveryModel, TreatsTheSequencesOfABatchApart) {
  ExactModel m(GetParam());
  const Tensor ids = random_ids(3, 8, m.model.spec().vocab, 6, m.memory);
  const auto together = m.logits(m.alone(ids));
  std::vector<double> apart;
  for (std::int64_t row = 0; row < 3; ++row) {
    const auto one = m.logits(m.alone(ids.slice(0, row, row + 1)));
    apart.insert(apart.end(), one.begin(), one.end());
  }
  expect_near(together, apart);
}

INSTANTIATE_TEST_SUITE_P(Families, EveryModel, testing::ValuesIn(kReferenceModels),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Model, LastLogitsAreThoseOfEachSequencesLastToken) {
  ExactModel m("llama");
  const MicroBatch batch = m.alone(random_ids(2, 5, m.model.spec().vocab, 8, m.memory));
  const auto all = m.logits(batch);
  const Tensor last = m.model.logits(batch, true, nullptr, m.stream, m.memory);
  const auto V = static_cast<std::size_t>(m.model.spec().vocab);
  ASSERT_EQ(last.count(), static_cast<std::int64_t>(2 * V));
  expect_near(last.host<double>().subspan(0, V), std::span(all).subspan(4 * V, V));
  expect_near(last.host<double>().subspan(V, V), std::span(all).subspan(9 * V, V));
}

TEST(Model, GoesThroughTheLayersItIsTold) {
  // A model of two layers that goes through one of them is that of one layer with its weights.
  ExactModel both("llama");
  ASSERT_EQ(both.model.spec().layers, 2);
  ModelSpec single = both.model.spec();
  single.layers = 1;
  const MicroBatch batch = both.alone(random_ids(2, 5, single.vocab, 8, both.memory));
  const auto whole = both.logits(batch);
  for (const int layer : {0, 1}) {
    Model one(single, {.dtype = DType::f64, .positions = 32}, ParamStore::Purpose::inference,
              both.memory);
    for (Parameter* p : one.store().parameters()) {
      std::string name = p->parts.front().name;
      if (const auto at = name.find("layers.0."); at != std::string::npos) {
        name.replace(at, 9, fmt::format("layers.{}.", layer));
      }
      for (const Parameter* from : both.model.store().parameters()) {
        if (from->parts.front().name != name) continue;
        std::ranges::copy(from->value.host<double>(), p->value.host<double>().begin());
      }
    }
    const Tensor expected = one.logits(batch, false, nullptr, both.stream, both.memory);
    both.model.go_through({layer});
    expect_near(both.logits(batch), expected.host<double>());
    // With a cache, token by token.
    KvCache cache(both.model.cache_shape(1, 5), both.memory);
    const Tensor ids = batch.ids.slice(0, 0, 1);
    std::vector<double> in_chunks;
    for (std::int64_t at = 0; at < 5; ++at) {
      const auto part = both.logits(both.alone(ids.slice(1, at, at + 1), at), &cache);
      in_chunks.insert(in_chunks.end(), part.begin(), part.end());
    }
    expect_near(in_chunks, expected.host<double>().subspan(0, in_chunks.size()));
  }
  both.model.go_through({1, 0});
  const auto swapped = both.logits(batch);
  EXPECT_GT(std::abs(swapped.back() - whole.back()), 1e-6);
  both.model.go_through({0, 1});
  EXPECT_EQ(both.logits(batch), whole);
}

TEST(Model, SaysWhichLayersItCannotGoThrough) {
  ExactModel m("llama");
  const auto refusal = [&](std::vector<int> layers) -> std::string {
    try {
      m.model.go_through(std::move(layers));
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  EXPECT_EQ(refusal({0, 2}), "there is no layer 2 in a model of 2");
  EXPECT_EQ(refusal({0, 1, 0}), "layer 0 is named twice");
}

TEST(Model, LossesAreCrossEntropiesOfTheLogits) {
  ExactModel m("qwen3");
  MicroBatch batch = m.alone(random_ids(1, 6, m.model.spec().vocab, 8, m.memory));
  batch.targets = random_ids(1, 6, m.model.spec().vocab, 9, m.memory);
  batch.targets.host<std::int32_t>()[3] = ops::kIgnoreTarget;
  const auto logits = m.logits(batch);
  const Tensor losses = m.model.losses(batch, m.stream, m.memory);
  const auto V = static_cast<std::size_t>(m.model.spec().vocab);
  for (std::size_t t = 0; t < 6; ++t) {
    double sum = 0.0;
    for (std::size_t v = 0; v < V; ++v) sum += std::exp(logits[t * V + v]);
    const std::int32_t target = batch.targets.host<std::int32_t>()[t];
    const double want =
        t == 3 ? 0.0 : std::log(sum) - logits[t * V + static_cast<std::size_t>(target)];
    EXPECT_NEAR(losses.host<double>()[t], want, 1e-10);
  }
}

TEST(Model, ACacheThatIsFullIsRefused) {
  ExactModel m("llama");
  KvCache cache(m.model.cache_shape(1, 4), m.memory);
  const Tensor ids = random_ids(1, 5, m.model.spec().vocab, 8, m.memory);
  EXPECT_THROW(m.logits(m.alone(ids), &cache), Error);
}

}  // namespace
}  // namespace heddle
