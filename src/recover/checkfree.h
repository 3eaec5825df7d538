#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::recover {

// A lost stage of a pipeline made of those beside it: CheckFree and CheckFree+ (arXiv 2506.15461).
// Not exact: weights are a guess, moments begin at zero and their count of steps at 0. All other
// stages stay as they are. Stages count from 0.

enum class CheckFree : std::uint8_t {
  off,
  inner,  ///< stages with two neighbours
  plus    ///< all: odd micro-batches take the first two and the last two stages in swapped order
};

/// Of `plus`, which needs swapped pairs (parallel/schedule/routes.h): the other stage of a pair,
/// which has learnt this one's place too; -1 where the stage is in none.
int partner_of(int stage, int stages);

/// How a lost stage can be had.
struct StageRecovery {
  enum class Kind : std::uint8_t { mean, copy, impossible };
  Kind kind = Kind::impossible;
  int before = -1, after = -1;  ///< whose mean, or with `copy` the first of them alone
  std::string why = {};         ///< it is impossible
};
/// `is_lost` by stage. Embedding and head, which the first and the last stage have, cannot be
/// guessed: with `plus` the stage beside them keeps a copy (refreshed every step, so exact).
/// Error(usage) with `plus` where there are no swapped pairs.
StageRecovery recovery_of(int stage, const std::vector<bool>& is_lost, CheckFree mode);

/// What neighbours are weighted by: the norm of a stage's last gradient, or its square. The paper's
/// notation can be read as either, its code has the norm.
enum class NormWeight : std::uint8_t { norm, squared };
float neighbour_weight(double grad_norm, NormWeight by);

/// out = (a * before + b * after) / (a + b), each operation rounded to float32, in this order. Two
/// weights of zero count as equal ones. Error(data) where the weights are no weights.
void mean_of_neighbours(std::span<const float> before, float a, std::span<const float> after,
                        float b, std::span<float> out);

/// A tensor of a stage by its place: blocks of stages correspond by position.
struct StageTensor {
  int block = 0;          ///< from the stage's first one on
  std::string name = {};  ///< in the block: "mlp.up_proj.weight"
  std::span<float> values = {};
};
/// Fills `lost` with the mean of its neighbours' tensors in the same place. Lists may be in any
/// order; embedding and head are not in them. Error(data) where stages do not correspond.
void fill_with_mean(std::span<const StageTensor> before, float a,
                    std::span<const StageTensor> after, float b, std::span<const StageTensor> lost);
/// The same from a partner alone.
void fill_with_copy(std::span<const StageTensor> partner, std::span<const StageTensor> lost);

/// By how much learning rates are raised: of stages that were recovered, by a factor that does not
/// grow when they are lost again. What the schedule says is multiplied by it.
class RaisedRates {
 public:
  explicit RaisedRates(int stages, double factor = 1.1)
      : factor_(factor), is_raised_(static_cast<std::size_t>(stages)) {}

  void raise(int stage) { is_raised_[static_cast<std::size_t>(stage)] = true; }
  double factor(int stage) const {
    return is_raised_[static_cast<std::size_t>(stage)] ? factor_ : 1.0;
  }

 private:
  double factor_;
  std::vector<bool> is_raised_;
};

}  // namespace heddle::recover
