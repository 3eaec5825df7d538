#pragma once

#include "planner/compare_experts.h"

namespace heddle::planner {

/// A cluster of the FSMoE paper: fitted lines as printed there (figure 5), ms and ms per element.
struct FsmoeBed {
  const char* name;
  ExpertsTimings timings;
  int shards;         ///< GPUs of a node
  double lengths[3];  ///< of sequences
  double published;   ///< speedup over Tutel, mean of 1458 layers
  /// What attention multiplies, by length, where the authors' code has a line for it.
  LinearTime attention[3] = {};
};

inline FsmoeBed fsmoe_bed_a() {
  return {"A: 6 nodes of 8 A6000",
          {.exchange = {2.87e-1, 2.21e-7},
           .gather = {3.37e-1, 2.32e-6},
           .scatter = {3.95e-1, 2.34e-7},
           .sum = {5.11e-1, 4.95e-6},
           .product = {4.26e-2, 2.29e-11}},
          8,
          {512, 1024, 2048},
          1.18};
}

inline FsmoeBed fsmoe_bed_b() {
  return {"B: 8 nodes of 4 RTX 2080 Ti",
          {.exchange = {1.75e-1, 3.06e-7},
           .gather = {3.20e-2, 1.68e-7},
           .scatter = {3.91e-2, 1.67e-7},
           .sum = {8.37e-2, 5.99e-7},
           .product = {9.24e-2, 4.42e-11}},
          4,
          {256, 512, 1024},
          1.22,
          {{9.061728879e-1, 1.6690605555e-10},
           {7.674542565e-1, 1.7435315251e-10},
           {6.4634952121e-1, 2.5884462453e-10}}};
}

inline ExpertsBlock block_on(const FsmoeBed& bed, const ExpertsLayerShape& layer, double sequences,
                             std::size_t length) {
  ExpertsBlock block = attention_and_experts(bed.timings, layer, sequences);
  const double multiplications =
      (4 * layer.hidden + 2 * bed.lengths[length]) * layer.tokens * layer.hidden / layer.shards;
  if (const double products = bed.attention[length](multiplications);
      bed.attention[length].fixed > 0) {
    const double elements = layer.tokens * layer.hidden;
    const double shared = bed.timings.gather(elements) + bed.timings.scatter(elements);
    block.dense_forward = products + shared;
    block.dense_backward = 2 * products + shared;
  }
  return block;
}

/// Calls `visit` with the layers of the paper's table 4. Heads change nothing here, so these are a
/// third of its 1458; tokens that are not dropped count as capacity 1.
template <class Visit>
void for_each_fsmoe_layer(const FsmoeBed& bed, const Visit& visit) {
  for (const double sequences : {1, 2, 4}) {
    for (std::size_t i = 0; i < 3; ++i) {
      for (const double hidden : {1024, 2048, 4096}) {
        for (const double wider : {2, 3, 4}) {
          for (const double capacity : {1.2, 2.4, 1.0}) {
            for (const int products : {2, 3}) {
              const ExpertsLayerShape layer{.tokens = sequences * bed.lengths[i],
                                            .rows_per_token = 2 * capacity,
                                            .hidden = hidden,
                                            .width = wider * hidden,
                                            .products = products,
                                            .shards = bed.shards};
              visit(block_on(bed, layer, sequences, i));
            }
          }
        }
      }
    }
  }
}

}  // namespace heddle::planner
