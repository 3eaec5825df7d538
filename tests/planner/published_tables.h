#pragma once

#include <vector>

#include "planner/measured_rows.h"

namespace heddle::planner {

/// A published run: its shape and the seconds of a step.
struct PublishedRow {
  int heads, hidden, layers, tp, pp, gpus, batch, sequences, chunks;
  double seconds;
};

inline MeasuredRow measured(const PublishedRow& from, Recompute recompute, bool sequence = false,
                            int zero = 0) {
  MeasuredRow row;
  row.job = {.spec = gpt_spec(from.hidden, from.heads, from.layers, 2048),
             .seq_len = 2048,
             .batch = from.batch,
             .stack = Stack::megatron()};
  row.candidate = {{.dp = from.gpus / from.tp / from.pp,
                    .tp = from.tp,
                    .pp = from.pp,
                    .zero = zero,
                    .sequence = sequence,
                    .schedule = from.chunks > 1 ? Pipeline::interleaved : Pipeline::one_f_one_b,
                    .chunks = from.chunks},
                   recompute,
                   from.sequences};
  row.seconds = from.seconds;
  finish_row(row);
  return row;
}

/// Small tables are divided by place, so that both halves have large and small models, and both
/// kinds of recomputation.
inline std::vector<MeasuredRow> divided(std::vector<MeasuredRow> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].is_for_calibration = i % 4 == 0 || i % 4 == 3;
  }
  return rows;
}

/// Korthikanti et al. 2022, table 5: full recomputation, and sequence parallelism with selective
/// recomputation. A100-80GB, tensor parallelism over 8, no data parallelism.
inline std::vector<MeasuredRow> korthikanti_rows() {
  return divided({
      measured({64, 6144, 48, 8, 1, 8, 4, 4, 1, 1.42}, Recompute::full),
      measured({64, 6144, 48, 8, 1, 8, 4, 4, 1, 1.10}, Recompute::selective, true),
      measured({96, 12288, 96, 8, 8, 64, 64, 1, 3, 18.13}, Recompute::full),
      measured({96, 12288, 96, 8, 8, 64, 64, 1, 3, 13.75}, Recompute::selective, true),
      measured({128, 20480, 105, 8, 35, 280, 280, 1, 3, 49.05}, Recompute::full),
      measured({128, 20480, 105, 8, 35, 280, 280, 1, 3, 37.83}, Recompute::selective, true),
      measured({160, 25600, 128, 8, 64, 512, 512, 1, 1, 94.42}, Recompute::full),
      measured({160, 25600, 128, 8, 64, 512, 512, 1, 1, 71.49}, Recompute::selective, true),
  });
}

/// Narayanan et al. 2021, table 1: times implied by the FLOP/s it gives; micro-batches and chunks
/// of the published scripts.
inline std::vector<MeasuredRow> ptd_p_table_1() {
  std::vector<MeasuredRow> rows;
  for (const PublishedRow& row : {
           PublishedRow{24, 2304, 24, 1, 1, 32, 512, 16, 1, 3.53},
           PublishedRow{32, 3072, 30, 2, 1, 64, 512, 16, 1, 3.70},
           PublishedRow{32, 4096, 36, 4, 1, 128, 512, 16, 1, 3.70},
           PublishedRow{48, 6144, 40, 8, 1, 256, 1024, 8, 1, 9.40},
           PublishedRow{64, 8192, 48, 8, 2, 512, 1536, 4, 1, 14.45},
           PublishedRow{80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 16.06},
           PublishedRow{96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 24.82},
           PublishedRow{128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 37.61},
           PublishedRow{128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 54.08},
           PublishedRow{160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 102.63},
       }) {
    rows.push_back(measured(row, Recompute::full));
  }
  return divided(rows);
}

/// Narayanan et al. 2021, table 2: ZeRO-3 without model parallelism.
inline std::vector<MeasuredRow> ptd_p_table_2_zero3() {
  std::vector<MeasuredRow> rows;
  for (const PublishedRow& row : {
           PublishedRow{96, 12288, 96, 1, 1, 384, 1536, 4, 1, 81.6},
           PublishedRow{96, 12288, 96, 1, 1, 768, 1536, 2, 1, 66.8},
           PublishedRow{96, 12288, 96, 1, 1, 1536, 1536, 1, 1, 66.8},
           PublishedRow{128, 20480, 105, 1, 1, 640, 2560, 4, 1, 255.5},
           PublishedRow{128, 20480, 105, 1, 1, 1120, 2240, 2, 1, 179.9},
           PublishedRow{128, 20480, 105, 1, 1, 2240, 2240, 1, 1, 183.7},
       }) {
    rows.push_back(measured(row, Recompute::full, false, 3));
  }
  return divided(rows);
}

}  // namespace heddle::planner
