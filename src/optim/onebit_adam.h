#pragma once

#include <memory>
#include <optional>

#include "codec/codec.h"
#include "optim/optimizer.h"
#include "parallel/exchange/joint_sum.h"

namespace heddle {

/// 1-bit Adam (Tang et al. 2021): AdamW until its second moment is frozen. From then on gradients
/// of matrices stay with the ranks that made them. Each adds its own to the common momentum, and
/// what travels is the sign of that with a scale for each tensor, there and back, with the errors
/// of both encodings kept (docs/design/039-onebit-adam.md). Vectors (norms, biases) go on as with
/// AdamW. With ZeRO 0 and 1.
///
/// What ranks add up is x_r = beta1 / N m + (1 - beta1) clip g_r, with N ranks and g_r the part of
/// the gradient that is rank r's, so that errors are in units of the sum, whatever N is.
class OnebitAdam : public Optimizer {
 public:
  static std::vector<OptimizerState> states(const OnebitAdamConfig& config);
  /// Error(usage) for a store with ZeRO 2 or 3.
  OnebitAdam(const OnebitAdamConfig& config, ParamStore& store);

  /// Of a frozen step: afterwards gradients of matrices are their new common momentum.
  void exchange(const StepArgs& args, Stream& stream) override;
  void step(const StepArgs& args, Stream& stream) override;
  void adapt(StepPolicy& policy, std::int64_t step) const override;
  void add_totals(const Tensor& own, std::int64_t step, Stream& stream) const override;
  void look_at_totals(std::span<const double> own, std::int64_t step) override;
  Numbers numbers() const override;
  void restore(const Numbers& numbers) override;

 private:
  /// The matrices that the same ranks exchange.
  struct Group {
    Communicator* ranks = nullptr;
    std::optional<JointSum> sum;  ///< absent for a single rank
    std::vector<std::size_t> matrices;
  };

  bool is_frozen(std::int64_t step) const { return frozen_at_ && step > *frozen_at_; }
  bool is_sum_due(std::int64_t step) const;
  void update_matrices(const StepArgs& args, Stream& stream);
  /// The common momentum of a matrix, of which ZeRO leaves this rank only a part as a state.
  Tensor whole_momentum(std::size_t matrix) const;
  void gather_momentum(Stream& stream);

  const OnebitAdamConfig config_;
  ParamStore& store_;
  const std::unique_ptr<const codec::Codec> codec_;
  std::vector<ParamStore::JointMatrix> matrices_;
  std::vector<Group> groups_;
  std::map<int, Tensor> whole_momentum_;  ///< by bucket, with ZeRO 1
  bool has_whole_momentum_ = false;
  std::optional<std::int64_t> frozen_at_;  ///< the last step of the warm-up, once it is known
  double earlier_sum_ = 0.0;               ///< of the second moment, when it was last looked at
};

}  // namespace heddle
