#include "parity/mesh_cases.h"

namespace heddle {
namespace {

using ContextMethod::gather, ContextMethod::lightseq, ContextMethod::ring, ContextMethod::tokenring,
    ContextMethod::ulysses, ContextMethod::usp;
using ContextOrder::contiguous, ContextOrder::striped, ContextOrder::zigzag;

constexpr auto kWhole = VocabularyPlacement::replicated;
constexpr auto kPipeline = VocabularyPlacement::pipeline;

/// Methods that heads do not limit, on 2 to 8 ranks, with all their orders where that is cheap.
void add_alone(std::vector<MeshCase>& cases) {
  const ContextOrder orders[] = {contiguous, zigzag, striped};
  int turn = 0;
  for (const ContextMethod method : {ring, gather, tokenring}) {
    for (int cp = 2; cp <= 8; ++cp) {
      const bool has_all = cp == 3 || cp == 4;
      for (int i = 0; i < (has_all ? 3 : 1); ++i) {
        cases.push_back(
            {{.dp = 1, .cp = cp, .context = method, .context_order = orders[turn++ % 3]}});
      }
    }
  }
  for (int cp = 2; cp <= 8; ++cp) cases.push_back({{.dp = 1, .cp = cp, .context = lightseq}});
}

std::vector<MeshCase> make_cases() {
  std::vector<MeshCase> cases = {
      // Heads that are dealt out: to fewer, as many and more ranks than there are key heads.
      {{.dp = 1, .cp = 2}},
      {{.dp = 1, .cp = 3}},
      {{.dp = 1, .cp = 2, .context = ulysses}},
      {{.dp = 1, .cp = 2, .context = ulysses, .context_order = striped}},
      {{.dp = 1, .cp = 3, .context = ulysses, .context_order = zigzag}},
      {{.dp = 1, .cp = 4, .context = ulysses}},
      {{.dp = 1, .cp = 2, .context = usp}},
      {{.dp = 1, .cp = 3, .context = usp, .context_order = striped}},
      {{.dp = 1, .cp = 4, .context = usp, .context_order = contiguous, .context_heads = 2}},
      {{.dp = 1, .cp = 4, .context = usp, .context_order = zigzag, .context_heads = 2}},
      {{.dp = 1, .cp = 4, .context = usp, .context_order = striped, .context_heads = 2}},
      {{.dp = 1, .cp = 4, .context = usp, .context_heads = 4}},
      {{.dp = 1, .cp = 5, .context = usp, .context_order = contiguous}},
      {{.dp = 1, .cp = 6, .context = usp, .context_heads = 2}},
      {{.dp = 1, .cp = 6, .context = usp, .context_order = striped, .context_heads = 3}},
      {{.dp = 1, .cp = 7, .context = usp}},
      {{.dp = 1, .cp = 8, .context = usp, .context_heads = 2}},
      {{.dp = 1, .cp = 8, .context = usp, .context_order = contiguous, .context_heads = 4}},
      // State that is divided over dp x cp.
      {{.dp = 1, .cp = 3, .context = ring, .zero = 1}},
      {{.dp = 1, .cp = 3, .context = lightseq, .zero = 2}},
      {{.dp = 1, .cp = 5, .context = tokenring, .zero = 3}},
      {{.dp = 1, .cp = 4, .context = ulysses, .zero = 3}},
      {{.dp = 2, .cp = 2, .context = ring}},
      {{.dp = 2, .cp = 2, .context = gather, .zero = 1}},
      {{.dp = 2, .cp = 2, .context = ulysses, .zero = 2}},
      {{.dp = 2, .cp = 2, .context = tokenring, .zero = 3}},
      {{.dp = 2, .cp = 3, .context = lightseq, .zero = 3}},
      {{.dp = 3, .cp = 2, .context = usp, .zero = 2}},
      {{.dp = 2, .cp = 4, .context = ring, .context_order = striped, .zero = 3}},
      {{.dp = 4, .cp = 2, .context = lightseq, .zero = 1}},
      {{.dp = 2, .cp = 4, .context = ulysses, .zero = 2, .overlap = false}},
      // Tensor parallelism: heads of a tp rank are what is shared.
      {{.dp = 1, .tp = 2, .cp = 2, .context = ring}},
      {{.dp = 1, .tp = 2, .cp = 2, .context = ring, .sequence = true}},
      {{.dp = 1, .tp = 2, .cp = 2, .context = gather, .sequence = true}},
      {{.dp = 1, .tp = 2, .cp = 2, .context = ulysses}},
      {{.dp = 1, .tp = 2, .cp = 2, .context = usp, .sequence = true}},
      {{.dp = 1, .tp = 2, .cp = 2, .context = lightseq, .sequence = true}},
      {{.dp = 1, .tp = 2, .cp = 2, .context = tokenring, .vocabulary = kWhole}},
      {{.dp = 1, .tp = 2, .cp = 3, .context = ring, .sequence = true, .vocabulary = kWhole}},
      {{.dp = 1, .tp = 2, .cp = 3, .context = tokenring, .sequence = true}},
      {{.dp = 1, .tp = 2, .cp = 4, .context = lightseq}},
      {{.dp = 1, .tp = 2, .cp = 4, .context = gather, .zero = 3, .sequence = true}},
      {{.dp = 1, .tp = 4, .cp = 2, .context = ring, .sequence = true}},
      {{.dp = 1, .tp = 4, .cp = 2, .context = tokenring, .zero = 2}},
      // Pipelines.
      {{.dp = 1, .pp = 2, .cp = 2, .context = ring, .schedule = Pipeline::gpipe}},
      {{.dp = 1, .pp = 2, .cp = 2, .context = gather, .schedule = Pipeline::one_f_one_b}},
      {{.dp = 1, .pp = 2, .cp = 2, .context = ulysses, .schedule = Pipeline::zb_h1}},
      {{.dp = 1, .pp = 2, .cp = 2, .context = usp, .schedule = Pipeline::zb_v}},
      {{.dp = 1, .pp = 2, .cp = 2, .context = lightseq, .schedule = Pipeline::v_half}},
      {{.dp = 1,
        .pp = 2,
        .cp = 2,
        .context = tokenring,
        .schedule = Pipeline::interleaved,
        .chunks = 2}},
      {{.dp = 1, .pp = 2, .cp = 3, .context = lightseq, .schedule = Pipeline::one_f_one_b}},
      {{.dp = 1, .pp = 3, .cp = 2, .context = ring, .zero = 1, .schedule = Pipeline::zb_h1}},
      {{.dp = 1, .pp = 2, .cp = 4, .context = tokenring, .zero = 2, .schedule = Pipeline::zb_v}},
      {{.dp = 1, .pp = 4, .cp = 2, .context = ulysses, .zero = 3, .schedule = Pipeline::v_half}},
      {{.dp = 1,
        .pp = 2,
        .cp = 2,
        .context = ring,
        .schedule = Pipeline::one_f_one_b,
        .vocabulary = kPipeline}},
      {{.dp = 1,
        .pp = 2,
        .cp = 3,
        .context = lightseq,
        .zero = 3,
        .schedule = Pipeline::v_half,
        .vocabulary = kPipeline}},
      {{.dp = 1,
        .pp = 2,
        .cp = 4,
        .context = ulysses,
        .schedule = Pipeline::one_f_one_b,
        .vocabulary = kPipeline,
        .vocabulary_algorithm = 1}},
      // Recomputation.
      {{.dp = 1, .cp = 4, .context = ring}, true},
      {{.dp = 1, .cp = 3, .context = gather}, true},
      {{.dp = 1, .cp = 4, .context = ulysses, .zero = 3}, true},
      {{.dp = 1, .cp = 4, .context = usp, .context_heads = 2}, true},
      {{.dp = 1, .cp = 5, .context = lightseq}, true},
      {{.dp = 2, .cp = 3, .context = tokenring, .zero = 2}, true},
      {{.dp = 1, .tp = 2, .cp = 2, .context = lightseq, .sequence = true}, true},
      {{.dp = 1, .pp = 2, .cp = 2, .context = ulysses, .schedule = Pipeline::zb_h1}, true},
      // All of it.
      {{.dp = 2, .tp = 2, .cp = 2, .context = ring, .zero = 3, .sequence = true}},
      {{.dp = 2, .pp = 2, .cp = 2, .context = lightseq, .zero = 2, .schedule = Pipeline::zb_v},
       true},
      {{.dp = 1, .tp = 2, .pp = 2, .cp = 2, .context = gather, .schedule = Pipeline::gpipe}},
      {{.dp = 1,
        .tp = 2,
        .pp = 2,
        .cp = 2,
        .context = tokenring,
        .zero = 3,
        .sequence = true,
        .schedule = Pipeline::zb_v,
        .overlap = false}},
      {{.dp = 1,
        .tp = 2,
        .pp = 2,
        .cp = 2,
        .context = ulysses,
        .zero = 1,
        .sequence = true,
        .schedule = Pipeline::v_half,
        .vocabulary = kPipeline}},
  };
  add_alone(cases);
  return cases;
}

}  // namespace

const std::vector<MeshCase>& context_cases() {
  static const std::vector<MeshCase> cases = make_cases();
  return cases;
}

}  // namespace heddle
