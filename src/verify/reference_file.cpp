#include "verify/reference_file.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/model.h"
#include "ops/softmax_xent.h"

namespace heddle {
namespace {

void sum_over_ranks(std::map<std::string, Difference>& differences, World& world, Memory& host,
                    Stream& stream) {
  const Tensor sums = host.alloc({static_cast<std::int64_t>(differences.size()), 3}, DType::f64,
                                 MemoryTag::workspace);
  double* at = sums.data<double>();
  for (const auto& [name, d] : differences) {
    *at++ = d.squares;
    *at++ = d.norm_squares;
    *at++ = d.elements;
  }
  world.all().all_reduce(sums, ReduceOp::sum, stream).wait(stream);
  at = sums.data<double>();
  for (auto& [name, d] : differences) {
    d.squares = *at++;
    d.norm_squares = *at++;
    d.elements = *at++;
  }
}

}  // namespace

Tensor ReferenceFile::floats(const std::string& name) const {
  const Tensor out = host_.alloc(shape(name), DType::f32, MemoryTag::workspace);
  file_.read(name, out);
  return out;
}

Tensor ReferenceFile::ids(const std::string& name) const {
  const Tensor wide = host_.alloc(shape(name), DType::i64, MemoryTag::workspace);
  file_.read(name, wide);
  const Tensor narrow = host_.alloc(shape(name), DType::i32, MemoryTag::data);
  std::ranges::transform(wide.host<std::int64_t>(), narrow.host<std::int32_t>().begin(),
                         [](std::int64_t id) { return static_cast<std::int32_t>(id); });
  return narrow;
}

WorstTensor ReferenceFile::compare(const std::string& prefix, const std::vector<ParamPiece>& pieces,
                                   World& world, Stream& stream) const {
  std::map<std::string, Difference> differences;  // the same names in the same order everywhere
  for (const auto& entry : file_.entries()) {
    if (entry.name.starts_with(prefix)) differences[entry.name.substr(prefix.size())];
  }
  for (const ParamPiece& piece : pieces) {
    if (!piece.is_first_writer()) continue;
    const Tensor expected = host_.alloc(piece.data.shape(), DType::f32, MemoryTag::workspace);
    file_.read_slice(prefix + piece.part->name, piece.begin.sizes(), piece.end().sizes(), expected);
    differences[piece.part->name].add(on_host(piece, stream), expected);
  }
  sum_over_ranks(differences, world, host_, stream);
  WorstTensor worst;
  for (const auto& [name, difference] : differences) {
    const auto whole = static_cast<double>(shape(prefix + name).count());
    const double rel =
        difference.elements == whole ? difference.relative() : std::nan("");  // a box is missing
    if (!(rel <= worst.rel)) worst.name = name;
    raise(worst.rel, rel);
  }
  return worst;
}

std::vector<MicroBatch> by_sequence(const Tensor& input, const Tensor& labels, int replica,
                                    int replicas, Memory& host) {
  const std::int64_t each = (input.size(0) + replicas - 1) / replicas;
  std::vector<MicroBatch> batches;
  for (std::int64_t row = replica * each; row < (replica + 1) * each; ++row) {
    const std::int64_t at = std::min(row, input.size(0) - 1);
    batches.push_back(
        plain_batch(input.slice(0, at, at + 1), labels.slice(0, at, at + 1), 0, host));
    if (row == at) continue;
    const Tensor none = host.alloc(batches.back().ids.shape(), DType::i32, MemoryTag::data);
    std::ranges::fill(none.host<std::int32_t>(), ops::kIgnoreTarget);
    batches.back().targets = none;
  }
  return batches;
}

}  // namespace heddle
