#include "parity/whole_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "parallel/box.h"

namespace heddle {
namespace {

/// Calls `visit(index in the whole tensor, element)` for every element of a piece.
template <class Visit>
void for_each_element(const ParamPiece& piece, const Visit& visit) {
  for_each_stretch(
      piece.data, piece.begin, piece.part->whole, [&](const Tensor& stretch, std::int64_t first) {
        const auto each = [&](const auto& values) {
          for (const double x : values) visit(static_cast<std::size_t>(first++), x);
        };
        stretch.dtype() == DType::f64 ? each(stretch.host<double>()) : each(stretch.host<float>());
      });
}

bool same_bits(std::span<const double> a, std::span<const double> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

void WholeTensors::gather(const std::vector<ParamPiece>& pieces, World& world) {
  {
    const std::lock_guard lock(mutex_);
    for (const ParamPiece& piece : pieces) write(piece);
  }
  world.all().barrier();
  {
    const std::lock_guard lock(mutex_);
    for (const ParamPiece& piece : pieces) compare(piece);
  }
  world.all().barrier();
  if (world.rank() > 0) return;
  for (const auto& [name, writers] : writers_) {
    EXPECT_TRUE(std::ranges::all_of(writers, [](int count) { return count == 1; }))
        << name << " has elements without a writer, or with several";
  }
}

void WholeTensors::write(const ParamPiece& piece) {
  const auto count = static_cast<std::size_t>(piece.part->whole.count());
  auto& whole = by_name_[piece.part->name];
  auto& writers = writers_[piece.part->name];
  whole.resize(count);
  writers.resize(count);
  if (!piece.is_first_writer()) return;
  for_each_element(piece, [&](std::size_t at, double x) {
    whole[at] = x;
    ++writers[at];
  });
}

void WholeTensors::compare(const ParamPiece& piece) const {
  const auto& whole = by_name_.at(piece.part->name);
  bool is_same = true;
  for_each_element(piece, [&](std::size_t at, double x) {
    is_same = is_same && same_bits({&whole[at], 1}, {&x, 1});
  });
  EXPECT_TRUE(is_same) << "ranks hold different values of " << piece.part->name;
}

std::string WholeTensors::first_difference(const WholeTensors& other) const {
  if (by_name_.size() != other.by_name_.size()) return "the list of tensors";
  for (const auto& [name, whole] : by_name_) {
    const auto found = other.by_name_.find(name);
    if (found == other.by_name_.end() || !same_bits(whole, found->second)) return name;
  }
  return "";
}

double WholeTensors::largest_relative_difference(const WholeTensors& other) const {
  double largest = 0.0;
  for (const auto& [name, whole] : by_name_) {
    const auto& expected = other.by_name_.at(name);
    double squares = 0.0, norm = 0.0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      squares += std::pow(whole[i] - expected[i], 2);
      norm += std::pow(expected[i], 2);
    }
    largest = std::max(largest, std::sqrt(squares / norm));
  }
  return largest;
}

}  // namespace heddle
