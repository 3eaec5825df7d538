#include "parity/mesh_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace heddle {
namespace {

constexpr auto kWhole = VocabularyPlacement::replicated;
constexpr auto kPipeline = VocabularyPlacement::pipeline;

}  // namespace

const std::vector<MeshCase>& mesh_cases() {
  static const std::vector<MeshCase> cases = {
      // Data parallelism; three ranks do not divide much, and eight have more than there is to do.
      {{.dp = 2}},
      {{.dp = 2, .zero = 1}},
      {{.dp = 2, .zero = 2}},
      {{.dp = 2, .zero = 3}},
      {{.dp = 2, .zero = 2, .overlap = false}},
      {{.dp = 2, .zero = 3, .overlap = false}},
      {{.dp = 2, .zero = 3}, true},
      {{.dp = 3}},
      {{.dp = 3, .zero = 1}},
      {{.dp = 4, .zero = 2}},
      {{.dp = 5, .zero = 3}},
      {{.dp = 8, .zero = 1}},
      // Tensor parallelism; four ranks and eight are more than the key heads of most models.
      {{.dp = 1, .tp = 2}},
      {{.dp = 1, .tp = 2, .vocabulary = kWhole}},
      {{.dp = 1, .tp = 2, .sequence = true}},
      {{.dp = 1, .tp = 2, .sequence = true, .vocabulary = kWhole}},
      {{.dp = 1, .tp = 2, .sequence = true}, true},
      {{.dp = 1, .tp = 2}, true},
      {{.dp = 1, .tp = 3, .sequence = true}},
      {{.dp = 1, .tp = 4}},
      {{.dp = 1, .tp = 4, .vocabulary = kWhole}},
      {{.dp = 1, .tp = 4, .sequence = true}},
      {{.dp = 1, .tp = 4, .sequence = true, .vocabulary = kWhole}},
      {{.dp = 1, .tp = 8, .sequence = true}},
      // Pipelines: every schedule.
      {{.dp = 1, .pp = 2, .schedule = Pipeline::gpipe}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::one_f_one_b}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::interleaved, .chunks = 2}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::interleaved, .chunks = 3}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::zb_h1}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::zb_h2}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::zb_v}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::v_min}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::v_half}},
      {{.dp = 1, .pp = 3, .schedule = Pipeline::gpipe}},
      {{.dp = 1, .pp = 3, .schedule = Pipeline::one_f_one_b}},
      {{.dp = 1, .pp = 3, .schedule = Pipeline::interleaved, .chunks = 2}},
      {{.dp = 1, .pp = 3, .schedule = Pipeline::zb_h1}},
      {{.dp = 1, .pp = 3, .schedule = Pipeline::zb_h2}},
      {{.dp = 1, .pp = 3, .schedule = Pipeline::zb_v}},
      {{.dp = 1, .pp = 3, .schedule = Pipeline::v_min}},
      {{.dp = 1, .pp = 3, .schedule = Pipeline::v_half}},
      {{.dp = 1, .pp = 3, .schedule = Pipeline::routes}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::gpipe}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::one_f_one_b}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::interleaved, .chunks = 2}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::zb_h1}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::zb_h2}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::zb_v}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::v_min}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::v_half}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::zb_v}, true},
      // A vocabulary that is divided over the pipeline, by both algorithms.
      {{.dp = 1, .pp = 2, .schedule = Pipeline::one_f_one_b, .vocabulary = kPipeline}},
      {{.dp = 1,
        .pp = 2,
        .schedule = Pipeline::one_f_one_b,
        .vocabulary = kPipeline,
        .vocabulary_algorithm = 1}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::v_half, .vocabulary = kPipeline}},
      {{.dp = 1,
        .pp = 2,
        .schedule = Pipeline::v_half,
        .vocabulary = kPipeline,
        .vocabulary_algorithm = 1}},
      {{.dp = 1, .pp = 3, .schedule = Pipeline::one_f_one_b, .vocabulary = kPipeline}},
      {{.dp = 1,
        .pp = 4,
        .schedule = Pipeline::one_f_one_b,
        .vocabulary = kPipeline,
        .vocabulary_algorithm = 1}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::v_half, .vocabulary = kPipeline}, true},
      {{.dp = 2, .pp = 2, .zero = 1, .schedule = Pipeline::one_f_one_b, .vocabulary = kPipeline}},
      {{.dp = 2, .pp = 2, .zero = 3, .schedule = Pipeline::v_half, .vocabulary = kPipeline}},
      {{.dp = 2,
        .pp = 2,
        .zero = 2,
        .schedule = Pipeline::one_f_one_b,
        .vocabulary = kPipeline,
        .vocabulary_algorithm = 1}},
      {{.dp = 1, .tp = 2, .pp = 2, .schedule = Pipeline::one_f_one_b, .vocabulary = kPipeline}},
      {{.dp = 1,
        .tp = 2,
        .pp = 2,
        .sequence = true,
        .schedule = Pipeline::v_half,
        .vocabulary = kPipeline}},
      {{.dp = 2,
        .tp = 2,
        .pp = 2,
        .zero = 3,
        .sequence = true,
        .schedule = Pipeline::one_f_one_b,
        .vocabulary = kPipeline,
        .vocabulary_algorithm = 1}},
      // Two axes.
      {{.dp = 2, .tp = 2}},
      {{.dp = 2, .tp = 2, .zero = 1, .sequence = true}},
      {{.dp = 2, .tp = 2, .zero = 2, .vocabulary = kWhole}},
      {{.dp = 2, .tp = 2, .zero = 3, .sequence = true}},
      {{.dp = 2, .tp = 2, .zero = 3, .sequence = true, .vocabulary = kWhole}, true},
      {{.dp = 2, .tp = 4, .zero = 3}},
      {{.dp = 2, .tp = 4, .zero = 1, .sequence = true}},
      {{.dp = 4, .tp = 2, .zero = 2, .sequence = true}},
      {{.dp = 2, .pp = 2, .zero = 0, .schedule = Pipeline::one_f_one_b}},
      {{.dp = 2, .pp = 2, .zero = 1, .schedule = Pipeline::zb_h1}},
      {{.dp = 2, .pp = 2, .zero = 2, .schedule = Pipeline::zb_h2}},
      {{.dp = 2, .pp = 2, .zero = 3, .schedule = Pipeline::zb_v}},
      {{.dp = 2, .pp = 2, .zero = 3, .schedule = Pipeline::interleaved, .chunks = 2}, true},
      {{.dp = 3, .pp = 2, .zero = 3, .schedule = Pipeline::v_half}},
      {{.dp = 2, .pp = 3, .zero = 2, .schedule = Pipeline::v_min}},
      {{.dp = 2, .pp = 4, .zero = 3, .schedule = Pipeline::one_f_one_b}},
      {{.dp = 2, .pp = 4, .zero = 2, .schedule = Pipeline::v_half}},
      {{.dp = 4, .pp = 2, .zero = 1, .schedule = Pipeline::gpipe}},
      {{.dp = 1, .tp = 2, .pp = 2, .schedule = Pipeline::one_f_one_b}},
      {{.dp = 1, .tp = 2, .pp = 2, .sequence = true, .schedule = Pipeline::zb_v}},
      {{.dp = 1, .tp = 2, .pp = 2, .schedule = Pipeline::zb_h2, .vocabulary = kWhole}, true},
      {{.dp = 1, .tp = 2, .pp = 3, .sequence = true, .schedule = Pipeline::v_min}},
      {{.dp = 1, .tp = 2, .pp = 4, .sequence = true, .schedule = Pipeline::v_half}},
      {{.dp = 1,
        .tp = 4,
        .pp = 2,
        .sequence = true,
        .schedule = Pipeline::one_f_one_b,
        .vocabulary = kWhole}},
      {{.dp = 1, .tp = 4, .pp = 2, .schedule = Pipeline::interleaved, .chunks = 2}},
      // All three.
      {{.dp = 2, .tp = 2, .pp = 2, .zero = 0, .schedule = Pipeline::gpipe}},
      {{.dp = 2, .tp = 2, .pp = 2, .zero = 1, .sequence = true, .schedule = Pipeline::zb_v}},
      {{.dp = 2, .tp = 2, .pp = 2, .zero = 2, .schedule = Pipeline::zb_h1, .vocabulary = kWhole}},
      {{.dp = 2, .tp = 2, .pp = 2, .zero = 3, .sequence = true, .schedule = Pipeline::one_f_one_b},
       true},
      {{.dp = 2, .tp = 2, .pp = 2, .zero = 3, .sequence = true, .schedule = Pipeline::v_half}},
      {{.dp = 2,
        .tp = 2,
        .pp = 2,
        .zero = 3,
        .sequence = true,
        .schedule = Pipeline::interleaved,
        .chunks = 2,
        .vocabulary = kWhole,
        .overlap = false}},
  };
  return cases;
}

std::string name_of(const MeshCase& mesh) {
  const ParallelRequest& r = mesh.request;
  std::string name = fmt::format("dp{}_tp{}", r.dp, r.tp);
  if (r.sequence) name += "_seq";
  if (r.tp > 1 && r.vocabulary == kWhole) name += "_whole_vocabulary";
  if (r.vocabulary == kPipeline) {
    name += fmt::format("_pipeline_vocabulary_{}", r.vocabulary_algorithm);
  }
  if (r.pp > 1) name += fmt::format("_pp{}_{}", r.pp, name_of(r.schedule));
  if (r.chunks > 1) name += fmt::format("_{}_chunks", r.chunks);
  if (r.cp > 1) {
    name += fmt::format("_cp{}_{}_{}", r.cp, name_of(r.context), name_of(r.context_order));
    if (r.context_heads > 0) name += fmt::format("_{}_heads", r.context_heads);
  }
  if (r.ep > 1) name += fmt::format("_ep{}", r.ep);
  if (r.etp > 1) name += fmt::format("_etp{}", r.etp);
  for (const char c : r.ep_exchange.text())
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  if (r.dp * r.cp > 1) name += fmt::format("_zero{}", r.zero);
  if (!r.overlap) name += "_no_overlap";
  if (mesh.recompute) name += "_recompute";
  std::ranges::replace(name, '-', '_');
  return name;
}

void PrintTo(const MeshCase& mesh, std::ostream* out) { *out << name_of(mesh); }

bool fits(const ModelSpec& spec, const ParallelRequest& request) {
  const std::int64_t tp = request.tp, kv = spec.kv_heads;
  const bool is_divided = spec.heads % tp == 0 && (kv % tp == 0 || tp % kv == 0) &&
                          spec.ffn % tp == 0 && request.pp <= spec.layers;
  // What no mesh of these kinds does: a cap of logits over the pipeline.
  if (request.vocabulary == kPipeline && spec.logits_cap > 0.0) return false;
  return is_divided && problems_of(ParallelPlan{request}.context_shape(spec)).empty();
}

}  // namespace heddle
