#include "checkpoint/inspect.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/hf_config.h"

namespace heddle {
namespace {

std::uint64_t total_bytes(const StoredTensors& tensors) {
  std::uint64_t bytes = 0;
  for (const std::string& name : tensors.names()) bytes += tensors.spec(name).size_bytes();
  return bytes;
}

/// Counts what is done towards a known total.
class Progress {
 public:
  Progress(const ByteProgress& report, std::uint64_t total) : report_(report), total_(total) {}
  void add(std::uint64_t bytes) {
    done_ += bytes;
    if (report_) report_(done_, total_);
  }

 private:
  const ByteProgress& report_;
  std::uint64_t done_ = 0, total_;
};

std::vector<TensorReport> inspect_tensors(const StoredTensors& tensors, Progress& progress) {
  std::vector<TensorReport> reports;
  Memory memory;
  for (const std::string& name : tensors.names()) {
    const TensorSpec spec = tensors.spec(name);
    const StoredTensors::Content content = tensors.content(name, memory);
    TensorReport report{spec, std::nullopt};
    if (const auto dtype = spec.dtype()) report.stats = stats_of(content.bytes, *dtype);
    progress.add(content.bytes.size());
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace

std::int64_t InspectReport::parameters() const {
  std::int64_t count = 0;
  for (const TensorReport& tensor : weights) {
    count += tensor.spec.count();
  }
  return count;
}

std::uint64_t InspectReport::size_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto* tensors : {&weights, &optimizer}) {
    for (const TensorReport& tensor : *tensors) bytes += tensor.spec.size_bytes();
  }
  return bytes;
}

std::int64_t InspectReport::non_finite() const {
  std::int64_t count = 0;
  for (const auto* tensors : {&weights, &optimizer}) {
    for (const TensorReport& tensor : *tensors) {
      if (tensor.stats) count += tensor.stats->non_finite();
    }
  }
  return count;
}

std::int64_t InspectReport::opaque() const {
  return std::ranges::count_if(weights, [](const TensorReport& t) { return t.spec.is_opaque(); });
}

bool CompareReport::are_equal() const {
  return missing.empty() && extra.empty() && not_compared.empty() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [](const ComparedTensor& tensor) { return tensor.difference.max_abs == 0; });
}

InspectReport inspect(const std::filesystem::path& path, const ByteProgress& progress) {
  const ModelSource source(path, Verify::checksums);
  Progress done(progress, total_bytes(source.weights()) + total_bytes(source.optimizer()));
  InspectReport report;
  report.path = source.path();
  report.kind = source.kind();
  report.manifest = source.manifest();
  report.weights = inspect_tensors(source.weights(), done);
  report.optimizer = inspect_tensors(source.optimizer(), done);
  for (const TextFile& companion : source.companions()) {
    if (companion.name != "config.json") continue;
    report.quantization =
        quantization_of(companion.content, (source.path() / companion.name).string());
  }
  return report;
}

CompareReport compare(const std::filesystem::path& path, const std::filesystem::path& reference,
                      const ByteProgress& progress) {
  const ModelSource source(path), other(reference);
  const StoredTensors &ours = source.weights(), &theirs = other.weights();
  CompareReport report;
  for (const std::string& name : theirs.names()) {
    if (!ours.contains(name)) report.missing.push_back(name);
  }
  Progress done(progress, total_bytes(ours));
  Memory memory;
  for (const std::string& name : ours.names()) {
    const TensorSpec a = ours.spec(name);
    if (!theirs.contains(name)) {
      report.extra.push_back(name);
    } else if (const TensorSpec b = theirs.spec(name); a.sizes != b.sizes) {
      report.not_compared.push_back(fmt::format("{}: shape {} here, {} in the reference", name,
                                                a.shape().text(), b.shape().text()));
    } else if (!a.dtype() || !b.dtype()) {
      report.not_compared.push_back(
          fmt::format("{}: dtypes {} and {}", name, a.dtype_name, b.dtype_name));
    } else {
      const auto content_a = ours.content(name, memory), content_b = theirs.content(name, memory);
      report.tensors.push_back(
          {name, a.sizes, difference_of(content_a.bytes, *a.dtype(), content_b.bytes, *b.dtype())});
    }
    done.add(a.size_bytes());
  }
  std::stable_sort(report.tensors.begin(), report.tensors.end(), [](const auto& a, const auto& b) {
    return a.difference.relative > b.difference.relative;
  });
  return report;
}

}  // namespace heddle
