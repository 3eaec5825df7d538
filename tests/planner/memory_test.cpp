#include "planner/memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/schedule/make_schedule.h"
#include "planner/block_cost.h"
#include "planner/gemm.h"
#include "planner/measured_rows.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

struct Published {
  std::int64_t heads, hidden, layers;
  int pp, chunks, sequences;
  double static_gib, none_gib, sequence_selective_gib;
};

/// Korthikanti et al. 2022: parameters with optimizer state, and activations of the first stage.
constexpr Published kRuns[] = {
    {64, 6144, 48, 1, 1, 4, 45.5625, 59.25, 9.5625},
    {96, 12288, 96, 8, 3, 1, 45.5625, 66.84375, 12.3516},
    {128, 20480, 105, 35, 3, 1, 31.640625, 114.0234, 23.0762},
    {160, 25600, 128, 64, 1, 1, 32.958984, 131.25, 26.5625},
};

TEST(Memory, HasTheTwelvePublishedValues) {
  for (const Published& run : kRuns) {
    const ModelSpec spec = gpt_spec(run.hidden, run.heads, run.layers, 2048);
    const Pipeline schedule = run.chunks > 1 ? Pipeline::interleaved : Pipeline::one_f_one_b;
    const double flying = peaks_in_flight(schedule, run.pp, run.chunks).forward;
    const auto activations = [&](bool sequence, Recompute recompute) {
      return flying * static_cast<double>(run.layers) / run.pp *
             megatron_layer_bytes(spec, 2048, run.sequences, 8, sequence, recompute) / kGib;
    };
    EXPECT_NEAR(activations(false, Recompute::none), run.none_gib, 1e-4 * run.none_gib);
    EXPECT_NEAR(activations(true, Recompute::selective), run.sequence_selective_gib,
                1e-4 * run.sequence_selective_gib);
    const double h = static_cast<double>(run.hidden);
    const Stack stack = Stack::megatron();
    const double per_parameter = stack.parameter_bytes + stack.gradient_bytes + stack.state_bytes;
    EXPECT_NEAR(per_parameter * 12 * static_cast<double>(run.layers) * h * h / (8 * run.pp) / kGib,
                run.static_gib, 1e-4 * run.static_gib);
  }
}

TEST(Memory, ShrinksWithZeroAsTheFormulasSay) {
  const Machine machine = parse_machine(
      "name='m'\n[device]\nname='d'\nmemory_gib=1\nmemory_gb_per_s=1\nprocessors=1\n"
      "[device.matrix_tflops]\nf16=1\nbf16=1\n[device.vector_tflops]\nf32=1\n"
      "[device.gemm]\nefficiency=1\ntiles=[[1,1,1]]\nalignment=[[1,1,1,1,1,1,1]]\n"
      "[[link]]\nname='l'\ngb_per_s=1\nlatency_us=1\n",
      "m");
  Job job{.spec = gpt_spec(1024, 16, 24, 1024), .seq_len = 1024, .batch = 64, .stack = {}};
  const Split split = split_blocks(job, Pipeline::one_f_one_b, 1, 1);
  const double whole = static_cast<double>(job.spec.parameter_count());
  const auto per_parameter = [&](int zero) {
    const Candidate plan{{.dp = 8, .zero = zero}};
    const auto memory = estimate_memory(machine, job, plan, split, activations(job, plan));
    return (memory.parameters + memory.gradients + memory.optimizer) / whole;
  };
  EXPECT_NEAR(per_parameter(0), 18.0, 0.02);
  EXPECT_NEAR(per_parameter(1), 6.0 + 12.0 / 8, 0.02);
  // Two units, at most the table, are whole for a while: their gradients, and their weights.
  const double units = 2.0 * static_cast<double>(job.spec.vocab * job.spec.hidden) / whole;
  EXPECT_NEAR(per_parameter(2), 2.0 + 16.0 / 8 + 4.0 * units, 0.02);
  EXPECT_NEAR(per_parameter(3), 18.0 / 8 + 6.0 * units, 0.02);
}

TEST(Memory, OfTheWorstRankIsTheMostOfAllRanks) {
  const Machine machine = read_machine(source_dir() + "/configs/systems/a100-dgx-hdr.toml");
  const Job job{.spec = gpt_spec(12288, 96, 96, 2048),
                .seq_len = 2048,
                .batch = 1024,
                .stack = Stack::heddle(DType::bf16)};
  for (const Pipeline schedule :
       {Pipeline::one_f_one_b, Pipeline::gpipe, Pipeline::interleaved, Pipeline::zb_h1,
        Pipeline::zb_h2, Pipeline::zb_v, Pipeline::v_min, Pipeline::v_half}) {
    for (const int pp : {1, 4, 8}) {
      const int chunks = schedule == Pipeline::interleaved && pp > 1 ? 3 : 1;
      for (const auto vocabulary : {VocabularyPlacement::tensor, VocabularyPlacement::pipeline}) {
        const bool has_vocabulary_passes =
            pp > 1 && (schedule == Pipeline::one_f_one_b || schedule == Pipeline::v_half);
        if (vocabulary == VocabularyPlacement::pipeline && !has_vocabulary_passes) continue;
        if (pp == 1 && schedule != Pipeline::one_f_one_b) continue;
        const Candidate plan{{.dp = 64 / 8 * 8 / pp,
                              .tp = 8,
                              .pp = pp,
                              .zero = 1,
                              .sequence = true,
                              .schedule = schedule,
                              .chunks = chunks,
                              .vocabulary = vocabulary}};
        const Split split = split_blocks(job, schedule, pp, chunks, vocabulary);
        const double worst =
            estimate_memory(machine, job, plan, split, activations(job, plan)).total();
        const auto by_rank = memory_by_rank(machine, job, plan);
        ASSERT_EQ(by_rank.size(), static_cast<std::size_t>(pp));
        double most = 0.0;
        for (const MemoryEstimate& rank : by_rank) most = std::max(most, rank.total());
        const std::string what = std::string(name_of(schedule)) + " " + std::to_string(pp);
        EXPECT_LE(most, worst * (1 + 1e-9)) << what;
        const double slack = schedule == Pipeline::one_f_one_b ? 1e-9 : 0.07;
        EXPECT_NEAR(most, worst, slack * worst) << what;
      }
    }
  }
}

TEST(InFlight, IsTheSchedulesPeak) {
  for (const Pipeline schedule :
       {Pipeline::one_f_one_b, Pipeline::interleaved, Pipeline::zb_h1, Pipeline::zb_h2,
        Pipeline::zb_v, Pipeline::v_min, Pipeline::v_half}) {
    for (const int ranks : {2, 4, 8, 16}) {
      const int chunks = schedule == Pipeline::interleaved ? 3 : 1;
      const auto by_rank = peak_in_flight(
          make_schedule(schedule, {.ranks = ranks, .microbatches = 4 * ranks, .chunks = chunks}));
      const double most = *std::max_element(by_rank.begin(), by_rank.end());
      const InFlight said = peaks_in_flight(schedule, ranks, chunks);
      EXPECT_LE(said.forward, most + 1e-9) << name_of(schedule) << " " << ranks;
      EXPECT_GE(said.both, most - 1e-9) << name_of(schedule) << " " << ranks;
      EXPECT_GE(said.forward + said.waiting, most - 1e-9) << name_of(schedule) << " " << ranks;
    }
  }
}

TEST(BlockCost, OfASecondForwardLacksAttentionAndTheProductThatMakesTheOutput) {
  const Machine machine = read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  const double rate = machine.device.matrix_rate(DType::bf16);
  for (const std::int64_t seq_len : {2048, 131072}) {  // the MLP whole, and in chunks
    const Job job{.spec = gpt_spec(2048, 16, 4, 2048),
                  .seq_len = seq_len,
                  .stack = Stack::heddle(DType::bf16)};
    const auto T = static_cast<double>(seq_len), h = static_cast<double>(job.spec.hidden),
               f = static_cast<double>(job.spec.ffn);
    for (const int tp : {1, 2}) {
      const BlockCost block =
          block_cost(machine, job, Candidate{{.tp = tp, .sequence = true}, Recompute::none, 1});
      const double attention =
          block.dry.cost.attention_flops /
          (rate * attention_efficiency(machine.software, static_cast<double>(job.spec.head_dim)));
      const double up = gemm_seconds(machine.device, rate, 2, {T, f / tp, h, 1, h});
      const double down = gemm_seconds(machine.device, rate, 2, {T, h, f / tp, 1, f / tp});
      // Over tp the output is a sum of all ranks, which is made whether it is wanted or not; and
      // then the inside of chunks is made for it and once more for backward.
      const double products = tp == 1 ? down : seq_len > 32768 ? -up : 0.0;
      EXPECT_NEAR(block.forward.device - block.again_full.device, attention + products,
                  1e-9 * block.forward.device)
          << seq_len << " tokens, tp " << tp;
      EXPECT_EQ(block.forward.comm, block.again_full.comm);
    }
  }
}

TEST(BlockFlops, AreWhatTheLayersCount) {
  for (const bool is_gated : {false, true}) {
    ModelSpec spec = gpt_spec(256, 8, 2, 64);
    if (is_gated) {
      spec.mlp = ModelSpec::Mlp::swiglu;
      spec.kv_heads = 2;
      spec.ffn = 640;
      spec.names.gate = "g{}";
    }
    Memory memory(Memory::Mode::dry);
    DecoderPart share;
    share.stages = {{1, 2}};
    const Decoder decoder = build_decoder(spec, {.positions = 64}, memory, share);
    const CostShape shape{.sequences = 3, .seq_len = 64};
    Cost sum;
    for (const Layer* unit : decoder.unit_pointers()) sum += unit->cost(shape);
    const double T = 3 * 64, S = 64, h = 256, q = static_cast<double>(spec.heads * spec.head_dim),
                 kv = static_cast<double>(spec.kv_heads * spec.head_dim),
                 f = static_cast<double>(spec.ffn);
    EXPECT_DOUBLE_EQ(
        2.0 * T * (h * (2.0 * q + 2.0 * kv) + (is_gated ? 3.0 : 2.0) * h * f) + 2.0 * T * S * q,
        sum.forward_flops);
    // Twice of it backward: input and weights.
    EXPECT_DOUBLE_EQ(2 * sum.forward_flops, sum.backward_input_flops + sum.backward_weight_flops);
  }
}

}  // namespace
}  // namespace heddle::planner
