// Cross entropy in pieces: a vocabulary whose columns several holders have gives what the whole
// operation gives.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "ops/op_testing.h"
#include "ops/softmax_xent.h"

namespace heddle::ops {
namespace {

constexpr double kGradScale = 0.25;
/// What lies in the columns of padding: it must not be seen.
constexpr double kGarbage = 50.0;

/// One holder's columns of the logits: strided rows, of which the first `valid` columns exist.
struct Share {
  std::int64_t first = 0, valid = 0;
  std::unique_ptr<Padded> logits;
  Tensor max, sum, chosen;
};

class SharedVocabulary {
 public:
  SharedVocabulary(const Tensor& logits, const Tensor& targets, int holders) : targets_(targets) {
    const std::int64_t T = logits.size(0), V = logits.size(1), own = (V + holders - 1) / holders;
    for (std::int64_t n = 0; n < holders; ++n) {
      Share share;
      share.first = n * own;
      const std::int64_t begin = std::min(V, share.first), end = std::min(V, begin + own);
      share.valid = end - begin;
      const Tensor columns = empty({T, own}, logits.dtype());
      set(columns, std::vector<double>(static_cast<std::size_t>(T * own), kGarbage));
      if (share.valid > 0) {
        set(columns.slice(1, 0, share.valid), values(logits.slice(1, begin, end)));
      }
      share.logits = std::make_unique<Padded>(columns);
      for (Tensor* rows : {&share.max, &share.sum, &share.chosen})
        *rows = empty({T}, logits.dtype());
      shares_.push_back(std::move(share));
    }
  }

  /// Leaves the gradient in place of the logits.
  void run(Stream& stream) {
    for (Share& s : shares_) row_max(s.logits->view, s.valid, s.max, stream);
    combine(&Share::max, [](double a, double b) { return std::max(a, b); });
    for (Share& s : shares_) {
      row_exponentials(s.logits->view, s.valid, targets_, s.first, s.max, s.sum, s.chosen, stream);
      expect_zero_padding(s);
    }
    combine(&Share::sum, std::plus<>());
    combine(&Share::chosen, std::plus<>());
    for (Share& s : shares_) {
      softmax_gradient(s.logits->view, targets_, s.first, s.sum, kGradScale, stream);
      expect_zero_padding(s);
    }
  }

  double loss(std::int64_t row) const {
    return std::log(get(shares_[0].sum, row)) - get(shares_[0].chosen, row);
  }
  std::vector<double> gradient() const {
    std::vector<double> all;
    for (std::int64_t t = 0; t < targets_.count(); ++t) {
      for (const Share& s : shares_) {
        for (std::int64_t i = 0; i < s.valid; ++i) {
          all.push_back(get(s.logits->view, t * s.logits->view.stride(0) + i));
        }
      }
    }
    return all;
  }
  /// As bits can be compared.
  Tensor gradient_tensor() const {
    const auto all = gradient();
    const Tensor made = empty({static_cast<std::int64_t>(all.size())}, DType::f64);
    set(made, all);
    return made;
  }

 private:
  /// As an all-reduce does, in the dtype of the statistics.
  void combine(Tensor Share::*rows, const std::function<double(double, double)>& op) {
    for (std::int64_t t = 0; t < targets_.count(); ++t) {
      for (std::size_t n = 1; n < shares_.size(); ++n) {
        put(shares_[0].*rows, t, op(get(shares_[0].*rows, t), get(shares_[n].*rows, t)));
      }
      for (Share& s : shares_) put(s.*rows, t, get(shares_[0].*rows, t));
    }
  }
  static void expect_zero_padding(const Share& s) {
    for (std::int64_t t = 0; t < s.logits->view.size(0); ++t) {
      if (std::isnan(get(s.sum, t))) continue;  // a row that is lost
      for (std::int64_t i = s.valid; i < s.logits->view.size(1); ++i) {
        EXPECT_EQ(get(s.logits->view, t * s.logits->view.stride(0) + i), 0.0);
      }
    }
  }

  Tensor targets_;
  std::vector<Share> shares_;
};

Tensor some_targets(std::int64_t rows, std::int64_t vocabulary) {
  std::vector<std::int32_t> list;
  for (std::int64_t r = 0; r < rows; ++r) {
    list.push_back(r % 4 == 2
                       ? kIgnoreTarget
                       : static_cast<std::int32_t>(random_u64(5, static_cast<std::uint64_t>(r)) %
                                                   static_cast<std::uint64_t>(vocabulary)));
  }
  return ids(list);
}

TEST(SharedVocabulary, GivesTheLossAndGradientOfTheWhole) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t vocabulary : {1, 3, 5, 127, 129, 4097}) {
      for (const int holders : {1, 2, 3, 4}) {  // of 1, 3 and 5 columns, some have only padding
        SCOPED_TRACE(testing::Message() << vocabulary << " columns on " << holders << " holders");
        constexpr std::int64_t kRows = 7;
        const Tensor logits = random_tensor({kRows, vocabulary}, dtype, 3, 8.0);
        const Tensor targets = some_targets(kRows, vocabulary);
        const Tensor loss = empty({kRows}, DType::f64), gradient = copy_of(logits);
        Stream stream(1);
        cross_entropy_forward_backward(gradient, targets, kGradScale, loss, stream);
        SharedVocabulary shared(logits, targets, holders);
        shared.run(stream);
        const double tolerance = dtype == DType::f32 ? 2e-6 : 1e-13;
        for (std::int64_t r = 0; r < kRows; ++r) {
          if (targets.data<std::int32_t>()[r] == kIgnoreTarget) continue;
          EXPECT_NEAR(shared.loss(r), loss.data<double>()[r], tolerance * 10) << "row " << r;
        }
        const auto have = shared.gradient(), want = values(gradient);
        ASSERT_EQ(have.size(), want.size());
        for (std::size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(have[i], want[i], tolerance * kGradScale) << "element " << i;
        }
      }
    }
  }
}

TEST(SharedVocabulary, IsTheSameToTheBitOnAnyNumberOfThreads) {
  for (const DType dtype : kFloats) {
    const Tensor logits = random_tensor({33, 5001}, dtype, 3, 8.0);
    const Tensor targets = some_targets(33, 5001);
    on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
      SharedVocabulary shared(logits, targets, 3);
      shared.run(stream);
      return {shared.gradient_tensor()};
    });
  }
}

TEST(SharedVocabulary, PaddingAloneHasNoMaximumAndNoSum) {
  for (const DType dtype : kFloats) {
    Stream stream(1);
    const Tensor logits = random_tensor({3, 5}, dtype, 3);
    const Tensor targets = ids({0, 7, kIgnoreTarget});
    const Tensor max = empty({3}, dtype), sum = empty({3}, dtype), chosen = empty({3}, dtype);
    row_max(logits, 0, max, stream);
    // Below every logit that another holder can have.
    for (const double value : values(max)) EXPECT_LE(value, -3e38);
    set(max, {1.0, 2.0, 3.0});
    row_exponentials(logits, 0, targets, 5, max, sum, chosen, stream);
    EXPECT_EQ(values(sum), std::vector<double>(3, 0.0));
    EXPECT_EQ(values(chosen), std::vector<double>(3, 0.0));
    EXPECT_EQ(values(logits), std::vector<double>(15, 0.0));
  }
}

TEST(SharedVocabulary, TargetsInThePaddingOfAHolderAreNotIts) {
  // Columns 10 to 14, of which 10 and 11 exist: target 12 belongs to nobody here.
  Stream stream(1);
  const Tensor logits = random_tensor({2, 5}, DType::f64, 3);
  const double at_eleven = get(logits, 6);
  const Tensor max = empty({2}, DType::f64), sum = empty({2}, DType::f64),
               chosen = empty({2}, DType::f64);
  set(max, {0.5, 0.5});
  row_exponentials(logits, 2, ids({12, 11}), 10, max, sum, chosen, stream);
  EXPECT_EQ(get(chosen, 0), 0.0);
  EXPECT_EQ(get(chosen, 1), at_eleven - 0.5);
}

TEST(SharedVocabulary, IgnoredRowsMayHoldNotANumber) {
  Tensor logits = random_tensor({2, 7}, DType::f32, 3);
  put(logits, 1, std::numeric_limits<double>::quiet_NaN());
  SharedVocabulary shared(logits, ids({kIgnoreTarget, 6}), 2);
  Stream stream(1);
  shared.run(stream);
  const auto gradient = shared.gradient();
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(gradient[i], 0.0);
  for (std::size_t i = 7; i < 14; ++i) EXPECT_TRUE(std::isfinite(gradient[i]));
}

TEST(SharedVocabulary, ShowsNotANumberInTheLoss) {
  for (const std::int64_t column : {0, 3, 6}) {
    Tensor logits = random_tensor({2, 7}, DType::f32, 3);
    put(logits, column, std::numeric_limits<double>::quiet_NaN());
    SharedVocabulary shared(logits, ids({5, 5}), 3);
    Stream stream(1);
    shared.run(stream);
    EXPECT_TRUE(std::isnan(shared.loss(0))) << "column " << column;
    EXPECT_TRUE(std::isfinite(shared.loss(1)));
  }
}

TEST(RowLoss, IsTheLogarithmOfTheSumWithoutTheChosen) {
  Stream stream(1);
  const Tensor sum = empty({2}, DType::f32), chosen = empty({2}, DType::f32);
  const Tensor loss = empty({2}, DType::f64);
  set(sum, {8.0, 4.0});
  set(chosen, {-0.5, 1.0});
  row_loss(sum, chosen, ids({3, kIgnoreTarget}), loss, stream);
  EXPECT_DOUBLE_EQ(values(loss)[0], std::log(8.0) + 0.5);
  EXPECT_EQ(values(loss)[1], 0.0);
}

}  // namespace
}  // namespace heddle::ops
