// Layers whose work several ranks share, with their changes of placement, against differences in
// double precision. The objective is one number of all ranks together; a perturbation is of the
// logical tensor: where ranks hold the same, all of them perturb it.

#include <algorithm>
#include <mutex>
#include <numeric>

#include "comm/threads/thread_world.h"
#include "nn/activation.h"
#include "nn/embedding.h"
#include "nn/fuse.h"
#include "nn/layer_testing.h"
#include "nn/linear.h"
#include "nn/loss_head.h"
#include "nn/norm.h"
#include "nn/redistribute.h"
#include "nn/sequential.h"

namespace heddle {
namespace {

using Kind = Placement::Kind;

constexpr std::int64_t kVocab = 11, kWidth = 4, kTokens = kSequences * kSeqLen;
constexpr double kLossScale = 0.37;

struct SharedCase {
  std::string name;
  std::function<Layers(Communicator&)> make;
  Placement in = invariant(), out = invariant();
  bool reads_ids = false, is_loss = false, documents = false;
};

void PrintTo(const SharedCase& shared, std::ostream* out) { *out << shared.name; }

bool is_same_everywhere(const Placement& placement) {
  return placement.kind == Kind::invariant || placement.kind == Kind::replicate;
}

std::shared_ptr<Parameter> table(const std::string& name, std::int64_t rows, Placement on_tp) {
  auto made = parameter(name, {rows, kWidth});
  made->layout = whole_on_stage().with(Axis::tp, on_tp);
  return made;
}

std::int64_t rows_per_rank(Communicator& comm) { return (kVocab + comm.size() - 1) / comm.size(); }

Layers list(std::unique_ptr<Layer> a) {
  Layers made;
  made.push_back(std::move(a));
  return made;
}
Layers list(std::unique_ptr<Layer> a, std::unique_ptr<Layer> b) {
  Layers made = list(std::move(a));
  made.push_back(std::move(b));
  return made;
}

std::unique_ptr<Layer> change(Communicator& comm, Placement from, Placement to) {
  return std::make_unique<Redistribute>(comm, from, to, kWidth);
}

TokenShare share_of(Communicator& comm) { return {comm.rank(), comm.size()}; }

Layers vocabulary_embedding(Communicator& comm, Placement out) {
  const std::int64_t rows = rows_per_rank(comm);
  return list(std::make_unique<Embedding>(table("t", rows, shard(0)),
                                          VocabularyRows{rows * comm.rank(), false}),
              change(comm, partial(), out));
}

Layers token_embedding(Communicator& comm) {
  return list(std::make_unique<Embedding>(table("t", kVocab, replicate()), VocabularyRows{},
                                          share_of(comm)));
}

Layers position_embedding(Communicator& comm) {
  return list(
      change(comm, invariant(), shard(0)),
      std::make_unique<PositionEmbedding>(table("p", kSeqLen, replicate()), share_of(comm)));
}

Layers vocabulary_head(Communicator& comm, std::int64_t chunk, Placement in) {
  const std::int64_t rows = rows_per_rank(comm), first = rows * comm.rank();
  LossHead::Options options;
  options.chunk_tokens = chunk;
  options.vocabulary = {.others = &comm,
                        .first = first,
                        .valid = std::clamp<std::int64_t>(kVocab - first, 0, rows),
                        .whole = kVocab};
  return list(change(comm, in, replicate()),
              std::make_unique<LossHead>(table("w", rows, shard(0)), options));
}

Layers token_head(Communicator& comm, std::int64_t chunk) {
  LossHead::Options options;
  options.chunk_tokens = chunk;
  options.tokens = share_of(comm);
  return list(change(comm, invariant(), shard(0)),
              std::make_unique<LossHead>(table("w", kVocab, replicate()), options));
}

/// A block's second branch, fused: on every rank a part of the width between the products.
Layers divided_mlp(Communicator& comm, Placement stream) {
  auto norm = parameter("n", {kWidth});
  if (stream.kind == Kind::shard) norm->layout = Layout{}.with(Axis::tp, replicate());
  auto down = parameter("d", {kWidth, 3});
  down->layout = Layout{}.with(Axis::tp, shard(1));
  return fuse(layers(std::make_unique<RmsNorm>(norm, 1e-5), change(comm, stream, replicate()),
                     std::make_unique<Linear>(table("u", 6, shard(0)), nullptr),
                     std::make_unique<SwiGlu>(3), std::make_unique<Linear>(down, nullptr),
                     change(comm, partial(), stream)),
              {});
}

SharedCase alone(const std::string& name, Placement from, Placement to) {
  return {.name = name,
          .make = [=](Communicator& c) { return list(change(c, from, to)); },
          .in = from,
          .out = to};
}

// clang-format off
const SharedCase kShared[] = {
    alone("InvariantToReplicate", invariant(), replicate()),
    alone("PartialToInvariant", partial(), invariant()),
    alone("ShardToReplicate", shard(0), replicate()),
    alone("PartialToShard", partial(), shard(0)),
    alone("ReplicateToShard", replicate(), shard(0)),
    alone("InvariantToShard", invariant(), shard(0)),
    alone("ShardToInvariant", shard(0), invariant()),
    alone("ShardToPartial", shard(0), partial()),
    alone("PartialToReplicate", partial(), replicate()),
    {.name = "EmbeddingOfAVocabularyPart", .make = [](Communicator& c) { return vocabulary_embedding(c, invariant()); }, .reads_ids = true},
    {.name = "EmbeddingOfAVocabularyPartToTokenShares", .make = [](Communicator& c) { return vocabulary_embedding(c, shard(0)); }, .out = shard(0), .reads_ids = true},
    {.name = "EmbeddingOfATokenShare", .make = token_embedding, .out = shard(0), .reads_ids = true},
    {.name = "PositionEmbeddingOfATokenShare", .make = position_embedding, .out = shard(0)},
    {.name = "PositionEmbeddingOfATokenSharePacked", .make = position_embedding, .out = shard(0), .documents = true},
    {.name = "LossHeadOfAVocabularyPart", .make = [](Communicator& c) { return vocabulary_head(c, 512, invariant()); }, .is_loss = true},
    {.name = "LossHeadOfAVocabularyPartInChunks", .make = [](Communicator& c) { return vocabulary_head(c, 3, invariant()); }, .is_loss = true},
    {.name = "LossHeadOfAVocabularyPartFromTokenShares", .make = [](Communicator& c) { return vocabulary_head(c, 5, shard(0)); }, .in = shard(0), .is_loss = true},
    {.name = "MlpDividedByWidth", .make = [](Communicator& c) { return divided_mlp(c, invariant()); }},
    {.name = "MlpDividedByWidthBetweenTokenShares", .make = [](Communicator& c) { return divided_mlp(c, shard(0)); }, .in = shard(0), .out = shard(0)},
    {.name = "LossHeadOfATokenShare", .make = [](Communicator& c) { return token_head(c, 512); }, .is_loss = true},
    {.name = "LossHeadOfATokenShareInChunks", .make = [](Communicator& c) { return token_head(c, 2); }, .is_loss = true},
};
// clang-format on

/// One rank's side of a case.
class SharedRun {
 public:
  SharedRun(const SharedCase& shared, World& world)
      : case_(shared), world_(world), layer_(shared.make(world.all())), units_{&layer_} {
    store_ =
        std::make_unique<ParamStore>(units_, DType::f64, ParamStore::Purpose::training, memory_);
    for (Parameter* p : store_->parameters()) {
      const Tensor start = random(p->shape, p->layout.on(Axis::tp), 5);
      std::ranges::copy(start.host<double>(), p->value.host<double>().begin());
    }
    LayerCase feed;
    feed.documents = shared.documents;
    feed.vocab = kVocab;
    batch_ = micro_batch(feed, 1, memory_);
    if (shared.reads_ids) return;
    x_ = activations(shared.in, 6);
  }

  void check() {
    make_output_gradient();
    store_->retire_grads();
    for (Parameter* p : store_->parameters()) std::ranges::fill(p->grad.host<double>(), NAN);
    Saved saved;
    Ctx ctx = context(Keep::all);
    layer_.forward(copy(x_), saved, ctx);
    // A copy: Redistribute sums in place.
    const Tensor dx = layer_.backward_input(copy(dy_), saved, ctx);
    layer_.backward_weight(saved, ctx);
    EXPECT_TRUE(saved.empty());
    if (x_.defined()) expect_gradient_of(case_.in, x_, dx, "the input");
    for (const Parameter* p : store_->parameters()) {
      expect_gradient_of(p->layout.on(Axis::tp), p->value, p->grad, p->parts.front().name);
    }
  }

 private:
  Tensor random(const Shape& shape, const Placement& placement, std::uint64_t seed) {
    const auto rank = static_cast<std::uint64_t>(world_.rank());
    return uniform(shape, 1.0, is_same_everywhere(placement) ? seed : seed + 100 * (rank + 1),
                   memory_);
  }

  /// Random activations that lie so; the rows of padding are zero.
  Tensor activations(const Placement& placement, std::uint64_t seed) {
    if (placement.kind != Kind::shard) return random({kTokens, kWidth}, placement, seed);
    const std::int64_t own = tokens_per_rank(kTokens, world_.size());
    const Tensor made = random({own, kWidth}, placement, seed);
    const std::int64_t valid =
        std::clamp<std::int64_t>(kTokens - own * world_.rank(), 0, own) * kWidth;
    std::ranges::fill(made.host<double>().subspan(static_cast<std::size_t>(valid)), 0.0);
    return made;
  }

  void make_output_gradient() {
    if (!case_.is_loss) dy_ = activations(dual(case_.out), 7);
  }

  Ctx context(Keep keep) {
    return {.stream = stream_,
            .memory = memory_,
            .batch = batch_,
            .keep = keep,
            .loss_scale = kLossScale};
  }

  Tensor copy(const Tensor& from) {
    if (!from.defined()) return {};
    const Tensor to = memory_.alloc(from.shape(), DType::f64, MemoryTag::activations);
    std::ranges::copy(from.host<double>(), to.host<double>().begin());
    return to;
  }

  double sum_over_ranks(double own) {
    const Tensor sum = memory_.alloc({1}, DType::f64, MemoryTag::communication);
    sum.host<double>()[0] = own;
    world_.all().all_reduce(sum, ReduceOp::sum, stream_).wait(stream_);
    return sum.host<double>()[0];
  }

  double objective() {
    Saved saved;
    Ctx ctx = context(Keep::nothing);
    const Tensor y = layer_.forward(copy(x_), saved, ctx);
    EXPECT_TRUE(saved.empty());
    double own = 0.0;
    const auto values = y.host<double>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      own += values[i] * (case_.is_loss ? kLossScale : dy_.host<double>()[i]);
    }
    // What is invariant is one tensor, whichever rank looks at it.
    const bool counts = case_.is_loss || case_.out.kind != Kind::invariant || world_.rank() == 0;
    return sum_over_ranks(counts ? own : 0.0);
  }

  double slope(double* element) {
    constexpr double kStep = 1e-5;
    const double here = element != nullptr ? *element : 0.0;
    if (element != nullptr) *element = here + kStep;
    const double above = objective();
    if (element != nullptr) *element = here - kStep;
    const double below = objective();
    if (element != nullptr) *element = here;
    return (above - below) / (2.0 * kStep);
  }

  /// All ranks take the same way through this: each objective is a collective.
  void expect_gradient_of(const Placement& placement, const Tensor& at, const Tensor& gradient,
                          const std::string& what) {
    EXPECT_EQ(at.shape(), gradient.shape()) << what;
    const auto count = static_cast<std::size_t>(at.count());
    const bool is_same = is_same_everywhere(placement);
    for (int owner = 0; owner < (is_same ? 1 : world_.size()); ++owner) {
      const bool is_mine = is_same || owner == world_.rank();
      constexpr std::size_t kProbes = 12;
      for (std::size_t probe = 0; probe < std::min(kProbes, count); ++probe) {
        const std::size_t i = random_permutation(7, probe, count);
        const double measured = slope(is_mine ? &at.host<double>()[i] : nullptr);
        const double own = gradient.host<double>()[i];
        // The gradient of what ranks use apart is the sum of theirs.
        const bool adds = placement.kind == Kind::replicate || (!is_same && is_mine);
        const bool is_invariant = placement.kind == Kind::invariant;
        const double summed = sum_over_ranks(adds ? own : 0.0);
        const double computed = is_invariant ? own : summed;
        EXPECT_NEAR(computed, measured, 1e-7 * std::max(1.0, std::abs(measured)))
            << case_.name << ": element " << i << " of the gradient of " << what << ", rank "
            << owner;
      }
    }
  }

  const SharedCase& case_;
  World& world_;
  Memory memory_;
  Stream stream_{1};
  Sequential layer_;
  std::vector<Layer*> units_;
  std::unique_ptr<ParamStore> store_;
  MicroBatch batch_;
  Tensor x_, dy_;
};

class SharedLayers : public testing::TestWithParam<SharedCase> {};

TEST_P(SharedLayers, HaveTheGradientsThatDifferencesShow) {
  for (const int ranks : {2, 3, 4}) {  // 14 tokens, 11 ids: shares of several kinds of padding
    SCOPED_TRACE(ranks);
    run_ranks(ranks, [](World& world) { SharedRun(GetParam(), world).check(); });
  }
}

INSTANTIATE_TEST_SUITE_P(Table, SharedLayers, testing::ValuesIn(kShared),
                         [](const auto& info) { return info.param.name; });

/// The losses of all holders together, the gradients put together, and the logits.
struct HeadResult {
  double loss = 0.0;
  std::vector<double> dx, weight_grad, logits;
};

/// A head over a vocabulary that `ranks` ranks share.
HeadResult run_head(int ranks, std::int64_t vocab) {
  HeadResult result;
  std::mutex mutex;
  result.weight_grad.resize(static_cast<std::size_t>(vocab * kWidth));
  run_ranks(ranks, [&](World& world) {
    Memory memory;
    Stream stream(1);
    const std::int64_t rows = (vocab + ranks - 1) / ranks, first = rows * world.rank();
    const std::int64_t valid = std::clamp<std::int64_t>(vocab - first, 0, rows);
    LossHead::Options options;
    if (ranks > 1) {
      options.vocabulary = {.others = &world.all(), .first = first, .valid = valid, .whole = vocab};
    }
    const auto weight = parameter("w", {rows, kWidth});
    LossHead head(weight, options);
    Layer* unit = &head;
    ParamStore store({&unit, 1}, DType::f64, ParamStore::Purpose::training, memory);
    const Tensor whole = uniform({vocab, kWidth}, 1.0, 3, memory);
    if (valid > 0) {
      std::ranges::copy(whole.slice(0, first, first + valid).host<double>(),
                        weight->value.host<double>().begin());
    }
    const Tensor x = uniform({kTokens, kWidth}, 1.0, 4, memory);
    LayerCase feed;
    feed.vocab = vocab;
    const MicroBatch batch = micro_batch(feed, 1, memory);
    Ctx ctx{.stream = stream, .memory = memory, .batch = batch, .loss_scale = kLossScale};
    Saved saved;
    const Tensor losses = head.forward(x, saved, ctx);
    const Tensor dx = head.backward_input({}, saved, ctx);
    const Tensor logits = head.logits(x, ctx);
    const std::lock_guard lock(mutex);
    for (const double loss : losses.host<double>()) result.loss += loss;
    result.dx.resize(static_cast<std::size_t>(dx.count()));
    for (std::size_t i = 0; i < result.dx.size(); ++i) result.dx[i] += dx.host<double>()[i];
    const auto grad = weight->grad.host<double>();
    for (std::size_t i = 0; i < grad.size(); ++i) {
      if (i < static_cast<std::size_t>(valid * kWidth)) {
        result.weight_grad[static_cast<std::size_t>(first * kWidth) + i] = grad[i];
      } else {
        EXPECT_EQ(grad[i], 0.0) << "padding has a gradient";
      }
    }
    const auto own = values_of(logits);
    if (!result.logits.empty()) {
      EXPECT_EQ(own, result.logits) << "holders have other logits";
    }
    result.logits = own;
  });
  return result;
}

TEST(LossHead, OfASharedVocabularyIsTheWholeOne) {
  for (const std::int64_t vocab : {2, 5, 11, 12}) {
    const HeadResult want = run_head(1, vocab);
    for (const int ranks : {2, 3, 4}) {  // of two or five ids, some ranks have only padding
      SCOPED_TRACE(testing::Message() << vocab << " ids on " << ranks << " ranks");
      const HeadResult have = run_head(ranks, vocab);
      EXPECT_NEAR(have.loss, want.loss, 1e-12 * std::abs(want.loss));
      const auto expect_near = [](const std::vector<double>& a, const std::vector<double>& b) {
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-13);
      };
      expect_near(have.dx, want.dx);
      expect_near(have.weight_grad, want.weight_grad);
      expect_near(have.logits, want.logits);
    }
  }
}

TEST(OwnTokens, CoverTheMicroBatchOnceAndPadTheLastShare) {
  Memory memory;
  Stream stream(1);
  const Tensor ids = memory.alloc({2, 7}, DType::i32, MemoryTag::data);
  std::iota(ids.host<std::int32_t>().begin(), ids.host<std::int32_t>().end(), 100);
  const MicroBatch batch{.ids = ids, .targets = {}, .positions = {}, .first_key = {}};
  Ctx ctx{.stream = stream, .memory = memory, .batch = batch};
  for (const int count : {1, 2, 3, 4, 8, 20}) {
    std::vector<std::int32_t> all;
    for (int index = 0; index < count; ++index) {
      const Tensor own = own_tokens(ids, {index, count}, -7, ctx);
      EXPECT_EQ(own.count(), tokens_per_rank(14, count));
      all.insert(all.end(), own.host<std::int32_t>().begin(), own.host<std::int32_t>().end());
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i], i < 14 ? 100 + static_cast<std::int32_t>(i) : -7) << count << " shares";
    }
  }
}

}  // namespace
}  // namespace heddle
