#pragma once

#include <string>
#include <vector>

#include "planner/measured_rows.h"

namespace heddle::planner {

/// A constant of a machine that measurements can decide.
struct Constant {
  std::string name;  ///< its key in the machine file
  double value = 0;  ///< in the unit of the file
};

struct Calibration {
  Machine machine;
  std::vector<Constant> constants;
  int rows = 0;  ///< that were used: those marked for calibration
};

/// Fits six constants, starting from those of `machine`, to the rows that are marked for it: the
/// rate of matrix products, the host's time per launch and per step, what collectives between
/// servers reach, alone and crowded, and the gathers of ZeRO-3. Minimises the mean relative error
/// of the tables, each counting as much as any other, large ones bounded, so that outliers do not
/// decide. Constants on which no row depends keep their
/// values. Deterministic.
Calibration calibrate(const Machine& machine, const std::vector<std::vector<MeasuredRow>>& tables);

}  // namespace heddle::planner
