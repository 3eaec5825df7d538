// The four ZeRO stages of ParamStore on ranks as threads: whatever is held where, the numbers are
// those of one rank.

#include <algorithm>
#include <array>
#include <cmath>

#include "comm/threads/thread_world.h"
#include "optim/optimizer.h"
#include "parallel/store_testing.h"

namespace heddle {
namespace {

double counted_squares(const ParamStore& store, Stream& stream) {
  Memory memory;
  const Tensor sum = memory.zeros({1}, DType::f64, MemoryTag::workspace);
  store.add_counted_squares(sum, stream);
  return sum.host<double>()[0];
}

/// An embedding, a norm, a fused projection, and a head: sizes that need padding, with shard
/// boundaries inside rows.
Holders odd_units(bool tied) {
  const auto tokens = parameter("embedding", {7, 3});
  const auto head = tied ? tokens : parameter("head", {7, 3});
  Holders units;
  units.push_back(std::make_unique<Holder>(std::vector{tokens}));
  units.push_back(
      std::make_unique<Holder>(std::vector{parameter("norm", {3}, {Init::Kind::ones})}));
  units.push_back(std::make_unique<Holder>(std::vector{stacked({{"q", 13}, {"k", 6}}, {19, 5}),
                                                       stacked({{"qb", 13}, {"kb", 6}}, {19}),
                                                       parameter("down", {5, 33})}));
  units.push_back(std::make_unique<Holder>(std::vector{head}));
  return units;
}
Holders tied_units() { return odd_units(true); }
Holders untied_units() { return odd_units(false); }

/// Parameters that 2, 3 and 4 ranks divide without padding: 1536 elements in all.
Holders even_units() {
  Holders units;
  units.push_back(std::make_unique<Holder>(std::vector{parameter("a", {24, 16})}));
  units.push_back(
      std::make_unique<Holder>(std::vector{parameter("b", {48, 16}), parameter("c", {192})}));
  units.push_back(std::make_unique<Holder>(std::vector{parameter("d", {12, 16})}));
  return units;
}

struct StepSetup {
  int ranks = 1, zero = 0, microbatches = 1;
  bool overlap = false;
  DType dtype = DType::f32;
};

/// Gradients of one step: a normal number for every rank, micro-batch, tensor and element.
float noise(int source, const std::string& name, std::size_t index) {
  return static_cast<float>(
      random_normal(rng_key(static_cast<std::uint64_t>(source), name), index));
}

/// Whole numbers, whose sums are exact in any order.
float whole_number(int source, const std::string& name, std::size_t index) {
  return static_cast<float>(random_u64(rng_key(static_cast<std::uint64_t>(source), name), index) %
                            201) -
         100.0F;
}

using Source = float (*)(int source, const std::string& name, std::size_t index);

/// What two steps leave behind, put together from all ranks.
struct State {
  std::map<std::string, std::vector<float>> grads, values, moment1, moment2;
  std::vector<std::uint16_t> seen;  ///< the values as layers see them, rounded to bf16, on rank 0
  double squares = 0.0;
  friend bool operator==(const State&, const State&) = default;
};

/// One rank's walk through a step: forward through all units, where the head's gradient is made at
/// once, then backward.
class Walk {
 public:
  Walk(const StepSetup& setup, const Mesh& mesh, Source source, Holders units)
      : setup_(setup),
        mesh_(mesh),
        source_(source),
        units_(std::move(units)),
        store_(pointers(units_), {.dtype = setup.dtype, .zero = setup.zero}, mesh, memory_) {
    mesh.comm(Axis::dp).run_in_background(setup.overlap);
    initialize(store_, 17, stream_);
  }

  void gradients(int step) { walk(step, {}); }

  /// `look` sees the gradients.
  void step(int step, const std::function<void()>& look) {
    walk(step, [&] {
      look();
      optimizer_->step({.lr = 0.01, .step = step}, stream_);
    });
  }

  std::vector<std::uint16_t> seen() {
    std::vector<std::uint16_t> all;
    for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
      with_values(store_, unit, stream_, [&] {
        for (const auto& p : units_[static_cast<std::size_t>(unit)]->own()) {
          if (setup_.dtype == DType::bf16) {
            for (const BFloat16 value : p->value.host<BFloat16>()) all.push_back(value.bits);
          } else {
            for (const float value : p->value.host<float>()) all.push_back(to_bfloat16(value).bits);
          }
        }
      });
    }
    return all;
  }

  ParamStore& store() { return store_; }
  Memory& memory() { return memory_; }
  Stream& stream() { return stream_; }

 private:
  void walk(int step, const std::function<void()>& update) {
    RankUnits units = store_.units();
    const int last = static_cast<int>(units_.size()) - 1;
    units.units.back().adds_gradients_in_forward = true;
    walk_step(
        store_, units, setup_.microbatches, stream_,
        [&](const StepOp& op) {
          const bool is_forward = op.action->act == Act::f;
          if (is_forward) check_values(op.what);
          if (is_forward == (op.what == last)) add(op.what, op.action->microbatch, step);
        },
        update);
  }

  void add(int unit, int microbatch, int step) {
    // Sources count through the micro-batches of rank 0, then of rank 1, ...: what one rank that
    // has them all adds up in this order.
    const int source =
        1000 * step + 100 * unit + mesh_.coord(Axis::dp) * setup_.microbatches + microbatch;
    for (const auto& p : units_[static_cast<std::size_t>(unit)]->own()) {
      contribute(*p, [&](const std::string& name, std::size_t index) {
        return source_(source, name, index);
      });
    }
  }

  /// While a unit computes every value is there, and whole.
  void check_values(int unit) {
    for (const auto& p : units_[static_cast<std::size_t>(unit)]->own()) {
      ASSERT_TRUE(p->value.defined());
      EXPECT_EQ(p->value.shape(), p->shape);
      if (setup_.dtype != DType::f32) continue;
      for (const float value : p->value.host<float>()) EXPECT_TRUE(std::isfinite(value));
    }
  }

  StepSetup setup_;
  const Mesh& mesh_;
  Source source_;
  Memory memory_;
  Stream stream_{1};
  Holders units_;
  ParamStore store_;
  const std::unique_ptr<Optimizer> optimizer_ =
      make_optimizer(AdamWConfig{.weight_decay = 0.3}, store_);
};

Mesh mesh_of(int dp, World& world) { return Mesh(MeshShape{}.with(Axis::dp, dp), world.all()); }

State two_steps(const StepSetup& setup, Source source, Holders (*units)() = tied_units) {
  Collected grads, values, first, second;
  std::mutex mutex;
  State state;
  run_ranks(setup.ranks, [&](World& world) {
    const Mesh mesh = mesh_of(setup.ranks, world);
    Walk walk(setup, mesh, source, units());
    for (int step = 1; step <= 2; ++step) {
      walk.step(step, [&] {
        if (step != 2) return;
        const double squares = counted_squares(walk.store(), walk.stream());
        grads.add(walk.store().grad_pieces());
        const std::lock_guard lock(mutex);
        state.squares += squares;
      });
    }
    values.add(walk.store().value_pieces());
    const auto seen = walk.seen();
    if (world.rank() == 0) state.seen = seen;
    first.add(walk.store().state_pieces(0));
    second.add(walk.store().state_pieces(1));
  });
  state.grads = grads.tensors();
  state.values = values.tensors();
  state.moment1 = first.tensors();
  state.moment2 = second.tensors();
  return state;
}

void expect_same(const State& have, const State& want, const std::string& what) {
  EXPECT_EQ(have.grads, want.grads) << what;
  EXPECT_EQ(have.values, want.values) << what;
  EXPECT_EQ(have.moment1, want.moment1) << what;
  EXPECT_EQ(have.moment2, want.moment2) << what;
  EXPECT_NEAR(have.squares, want.squares, 1e-9 * want.squares) << what;
}

class Zero : public testing::TestWithParam<int> {
 protected:
  static int ranks() { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Zero, testing::Values(2, 3, 4));

TEST_P(Zero, EveryStageGivesTheBitsOfOneRankThatHasAllMicroBatches) {
  const State want = two_steps({.ranks = 1, .microbatches = ranks()}, noise, untied_units);
  EXPECT_EQ(want.values.size(), 8u);
  for (int zero = 0; zero <= 3; ++zero) {
    const State have = two_steps({.ranks = ranks(), .zero = zero}, noise, untied_units);
    expect_same(have, want, "stage " + std::to_string(zero));
  }
}

TEST_P(Zero, EveryStageGivesTheBitsOfStageZeroForTiedEmbeddings) {
  const State want = two_steps({.ranks = ranks()}, noise);
  EXPECT_EQ(want.values.size(), 7u);
  for (int zero = 1; zero <= 3; ++zero) {
    expect_same(two_steps({.ranks = ranks(), .zero = zero}, noise), want,
                "stage " + std::to_string(zero));
  }
}

TEST_P(Zero, EveryStageAddsUpMicroBatchesAndRanks) {
  const State want = two_steps({.ranks = 1, .microbatches = 3 * ranks()}, whole_number);
  for (int zero = 0; zero <= 3; ++zero) {
    const State have = two_steps({.ranks = ranks(), .zero = zero, .microbatches = 3}, whole_number);
    expect_same(have, want, "stage " + std::to_string(zero));
  }
}

TEST_P(Zero, Bf16LayersSeeRoundedMastersThatFollowTheBitsOfF32) {
  const State want = two_steps({.ranks = ranks()}, noise, untied_units);
  for (int zero = 0; zero <= 3; ++zero) {
    const State have =
        two_steps({.ranks = ranks(), .zero = zero, .dtype = DType::bf16}, noise, untied_units);
    expect_same(have, want, "stage " + std::to_string(zero));
    EXPECT_EQ(have.seen, want.seen) << "stage " << zero;
  }
}

TEST_P(Zero, OverlapChangesNoBit) {
  for (int zero = 0; zero <= 3; ++zero) {
    for (const int microbatches : {1, 4}) {
      StepSetup setup{.ranks = ranks(), .zero = zero, .microbatches = microbatches};
      const State without = two_steps(setup, noise);
      setup.overlap = true;
      const State with = two_steps(setup, noise);
      expect_same(with, without, "stage " + std::to_string(zero));
    }
  }
}

std::size_t live(const Memory& memory, MemoryTag tag) {
  return memory.stats().live[static_cast<std::size_t>(tag)];
}

TEST_P(Zero, HoldsExactlyTheBytesOfItsStage) {
  constexpr std::size_t kElements = 1536;
  const auto n = static_cast<std::size_t>(ranks());
  struct Row {
    std::size_t parameters, gradients, optimizer;  // of all ranks, in elements of 4 bytes
  };
  const std::array<Row, 4> want = {{
      {kElements, kElements, 2 * kElements},
      {kElements, kElements, 2 * kElements / n},
      {kElements, kElements / n, 2 * kElements / n},
      {kElements / n, kElements / n, 2 * kElements / n},
  }};
  for (int zero = 0; zero <= 3; ++zero) {
    SCOPED_TRACE(zero);
    run_ranks(ranks(), [&](World& world) {
      const Mesh mesh = mesh_of(ranks(), world);
      Walk walk({.ranks = ranks(), .zero = zero, .microbatches = 2}, mesh, noise, even_units());
      ASSERT_EQ(walk.store().parameter_count(), static_cast<std::int64_t>(kElements));
      const Row& row = want[static_cast<std::size_t>(zero)];
      const auto expect_held = [&] {
        EXPECT_EQ(live(walk.memory(), MemoryTag::parameters), 4 * row.parameters);
        EXPECT_EQ(live(walk.memory(), MemoryTag::gradients), 4 * row.gradients);
        EXPECT_EQ(live(walk.memory(), MemoryTag::optimizer), 4 * row.optimizer);
        EXPECT_EQ(live(walk.memory(), MemoryTag::communication), 0u);
      };
      expect_held();
      walk.step(1, expect_held);
      expect_held();
    });
  }
}

TEST_P(Zero, PaddingIsLessThanACacheLinePerParameterAndRank) {
  run_ranks(ranks(), [&](World& world) {
    const Mesh mesh = mesh_of(ranks(), world);
    Walk walk({.ranks = ranks()}, mesh, noise, tied_units());
    const auto elements = static_cast<std::size_t>(walk.store().parameter_count());
    constexpr std::size_t kParameters = 5, kBuckets = 3, kLine = 64;
    const std::size_t held = live(walk.memory(), MemoryTag::parameters);
    EXPECT_GT(held, 4 * elements);
    EXPECT_LT(held, 4 * elements +
                        kLine * (kParameters + kBuckets * static_cast<std::size_t>(world.size())));
  });
}

Holders many_units(int count) {
  Holders units;
  for (int i = 0; i < count; ++i) {
    units.push_back(
        std::make_unique<Holder>(std::vector{parameter("w" + std::to_string(i), {48, 16})}));
  }
  return units;
}

TEST_P(Zero, WhatIsGatheredAndReducedAtATimeDoesNotGrowWithTheModel) {
  for (int zero = 2; zero <= 3; ++zero) {
    run_ranks(ranks(), [&](World& world) {
      const auto peak = [&](int units) {
        const Mesh mesh = mesh_of(ranks(), world);
        Walk walk({.ranks = ranks(), .zero = zero}, mesh, noise, many_units(units));
        walk.gradients(1);
        return walk.memory()
            .stats()
            .peak_by_tag[static_cast<std::size_t>(MemoryTag::communication)];
      };
      const std::size_t of_six = peak(6);
      EXPECT_GT(of_six, 0u);
      EXPECT_EQ(peak(12), of_six) << "stage " << zero;
    });
  }
}

TEST_P(Zero, StageThreeHasValuesOnlyWhileTheirUnitComputes) {
  run_ranks(ranks(), [&](World& world) {
    const Mesh mesh = mesh_of(ranks(), world);
    Memory memory;
    Stream stream(1);
    const Holders units = tied_units();
    ParamStore store(pointers(units), {.zero = 3}, mesh, memory);
    initialize(store, 17, stream);
    const Parameter& fused = *units[2]->own()[0];
    EXPECT_FALSE(fused.value.defined());
    int seen = 0;
    tell_forward(store.units(), std::array{2, 3}, [&](const StepOp& op) {
      if (op.kind != StepOp::Kind::compute) return store.perform(op, stream);
      ++seen;
      EXPECT_EQ(fused.value.defined(), op.what == 2);
      // The tied table, which is of unit 0.
      EXPECT_EQ(units[0]->own()[0]->value.defined(), op.what == 3);
    });
    EXPECT_EQ(seen, 2);
    EXPECT_EQ(live(memory, MemoryTag::communication), 0u);
  });
}

TEST_P(Zero, ForInferenceStageThreeHoldsAShareOfTheValuesOnly) {
  run_ranks(ranks(), [&](World& world) {
    const Mesh mesh = mesh_of(ranks(), world);
    Memory memory;
    const Holders units = even_units();
    ParamStore store(pointers(units), {.purpose = ParamStore::Purpose::inference, .zero = 3}, mesh,
                     memory);
    EXPECT_TRUE(store.shards().empty());
    EXPECT_EQ(total(memory.stats().live), 4 * 1536u / static_cast<std::size_t>(world.size()));
  });
}

TEST(ZeroOnOneRank, IsStageZeroWhateverIsAsked) {
  const State want = two_steps({.ranks = 1}, noise);
  for (int zero = 1; zero <= 3; ++zero) {
    expect_same(two_steps({.ranks = 1, .zero = zero}, noise), want, "stage");
  }
}

}  // namespace
}  // namespace heddle
