#include "bench/machine_fit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/gemm.h"

namespace heddle {
namespace {

using planner::GemmModel;

double& matrix_rate(planner::Device& device, DType dtype) {
  if (dtype == DType::bf16) return device.matrix_bf16;
  return dtype == DType::f16 ? device.matrix_f16 : device.matrix_f32;
}

planner::GemmShape shape_of(const ProductSample& sample) {
  const double inputs = sample.kind == ProductSample::Kind::output ? sample.k : sample.n;
  return {sample.m, sample.n, sample.k, 1.0, inputs};
}

double product_seconds(const planner::Device& device, DType dtype, const ProductSample& sample) {
  return planner::gemm_seconds(device, device.matrix_rate(dtype),
                               static_cast<double>(size_of(dtype)), shape_of(sample));
}

/// Sum of squared logarithms of predicted over measured.
double misfit(const planner::Device& device, DType dtype,
              const std::vector<ProductSample>& products) {
  double sum = 0.0;
  for (const ProductSample& sample : products) {
    const double error = std::log(product_seconds(device, dtype, sample) / sample.seconds);
    sum += error * error;
  }
  return sum;
}

/// Changes one constant after the other by steps that shrink, as long as that helps: the misfit is
/// smooth and has few constants.
void fit_products(planner::Device& device, DType dtype, const RankRates& rates) {
  double best_rate = rates.product_flops;
  for (const ProductSample& sample : rates.products) {
    best_rate = std::max(best_rate, 2.0 * sample.m * sample.n * sample.k / sample.seconds);
  }
  matrix_rate(device, dtype) = best_rate;
  GemmModel& gemm = device.gemm;
  gemm.half_depth = gemm.half_rows = gemm.half_columns = 8.0;
  const std::array<double*, 4> constants = {&matrix_rate(device, dtype), &gemm.half_depth,
                                            &gemm.half_rows, &gemm.half_columns};
  double best = misfit(device, dtype, rates.products);
  for (double factor = 2.0; factor > 1.001;) {
    bool helped = false;
    for (double* constant : constants) {
      for (const double by : {factor, 1.0 / factor}) {
        const double before = *constant;
        *constant = before * by;
        const double now = misfit(device, dtype, rates.products);
        if (now < best) {
          best = now;
          helped = true;
        } else {
          *constant = before;
        }
      }
    }
    if (!helped) factor = std::sqrt(factor);
  }
}

constexpr int kAligned = GemmModel::kAlignments - 1;

bool is_aligned(const ProductSample& sample) {
  const auto [inputs, others] = planner::alignment_powers(shape_of(sample));
  return inputs == kAligned && others == kAligned;
}

/// What of the rate of aligned products those reach where a smaller power of two divides the inputs
/// of a layer, or the other dimensions: as much slower as all such samples are in the mean, against
/// the machine as it was fitted to the aligned ones. (The three passes differ, and every layer
/// makes all of them.) A larger power is never worse.
void fit_alignment(planner::Device& device, DType dtype,
                   const std::vector<ProductSample>& products) {
  const planner::Device aligned = device;
  const auto fit = [&](GemmModel::ByPower& alignment, int planner::AlignmentPowers::*power_of,
                       int planner::AlignmentPowers::*aligned_power) {
    for (std::size_t power = kAligned; power-- > 0;) {
      double slower = 0.0;
      int count = 0;
      for (const ProductSample& sample : products) {
        const auto powers = planner::alignment_powers(shape_of(sample));
        if (powers.*power_of != static_cast<int>(power) || powers.*aligned_power != kAligned)
          continue;
        slower += sample.seconds / product_seconds(aligned, dtype, sample);
        ++count;
      }
      alignment[power] =
          count == 0 ? alignment[power + 1] : std::min(alignment[power + 1], count / slower);
    }
  };
  using Powers = planner::AlignmentPowers;
  fit(device.gemm.alignment, &Powers::others, &Powers::inputs);
  fit(device.gemm.input_alignment, &Powers::inputs, &Powers::others);
}

/// Products fall into tiles on a GPU; a CPU's are too small to count.
void set_tiles(planner::Device& device, bool is_gpu) {
  GemmModel& gemm = device.gemm;
  if (!is_gpu) {
    gemm.tile[0] = {1, 1, 1.0};
    gemm.tiles = 1;
    return;
  }
  gemm.tail = 0.5;
  gemm.tiles = 4;
  gemm.tile[0] = {256, 128, 1.0};
  gemm.tile[1] = {128, 256, 1.0};
  gemm.tile[2] = {128, 128, 0.95};
  gemm.tile[3] = {64, 64, 0.7};
}

planner::SharedDevice fit_rank(const MachineSamples& samples, const RankRates& rates) {
  planner::SharedDevice fitted{.ranks = rates.ranks, .device = {}, .software = {}};
  planner::Device& device = fitted.device;
  device.name = samples.device_name;
  device.memory_bytes = samples.memory_bytes;
  device.memory_bytes_per_s = rates.block_bytes;
  device.kernel_s = rates.kernel_seconds;
  // A call of ours is a kernel; the share of the time that PyTorch takes to launch one is not
  // known here, nor needed.
  device.vector_f32 = rates.block_bytes / 4.0;
  device.processors = samples.processors;
  set_tiles(device, samples.is_gpu);
  RankRates aligned = rates;
  if (samples.is_gpu) {
    std::erase_if(aligned.products,
                  [](const ProductSample& sample) { return !is_aligned(sample); });
  }
  fit_products(device, samples.dtype, aligned);
  if (samples.is_gpu) fit_alignment(device, samples.dtype, rates.products);
  planner::Software& software = fitted.software;
  software.optimizer_bytes = rates.parameter_seconds * rates.block_bytes;
  software.loss_bytes = rates.logit_seconds * rates.block_bytes;
  software.variation = std::min(1.0, rates.variation);
  software.fused_attention =
      std::min(1.0, rates.attention_flops / device.matrix_rate(samples.dtype));
  if (rates.attention_by_head.size() > 1) {
    for (const auto& [head_dim, flops] : rates.attention_by_head) {
      software.attention_by_head.push_back(
          {head_dim, std::min(1.0, flops / device.matrix_rate(samples.dtype))});
    }
  }
  for (const auto& [codec, encode, with_residual, decode] : rates.codecs) {
    fitted.codecs.push_back({codec, encode, with_residual, decode});
  }
  // Ranks of a CPU communicate with the cores that compute.
  software.contention = samples.is_gpu ? 0.1 : 1.0;
  return fitted;
}

planner::Link fit_link(const MachineSamples& samples) {
  // Of ranks of a CPU, where no table says it: threads and TCP connections are no rings.
  planner::Link link{.name = samples.link_name, .is_direct = !samples.is_gpu};
  if (samples.links.empty()) {
    // Nothing to measure with one rank: what it would copy.
    link.bytes_per_s = samples.rates.front().copy_bytes / 2.0;
    return link;
  }
  const LinkRates& rates = samples.links.front();
  link.latency_s = rates.message_latency;
  link.bytes_per_s = rates.message_bytes;
  // What gathers of single parameters reach, by the ring's bytes: the table's middle.
  for (const CollectiveSamples& table : rates.collectives) {
    if (table.op != CommOp::all_gather) continue;
    const auto& [bytes, seconds] = table.points[table.points.size() - 2];
    const double wire = bytes * (rates.ranks - 1) / rates.ranks;
    link.bytes_per_s = std::max(link.bytes_per_s, wire / seconds);
    link.message = std::min(1.0, rates.message_bytes / link.bytes_per_s);
    link.collective = std::min(1.0, wire / seconds / link.bytes_per_s);
  }
  return link;
}

}  // namespace

planner::Machine fit_machine(const MachineSamples& samples) {
  planner::Machine machine;
  machine.name = samples.name;
  machine.links = {fit_link(samples)};
  for (const LinkRates& links : samples.links) {
    for (const CollectiveSamples& of : links.collectives) {
      machine.collectives.push_back({.op = of.op, .ranks = of.ranks, .points = of.points});
    }
  }
  for (const RankRates& rates : samples.rates) {
    planner::SharedDevice fitted = fit_rank(samples, rates);
    if (&rates == &samples.rates.front()) {
      machine.device = fitted.device;
      machine.software = fitted.software;
      machine.codecs = fitted.codecs;
    } else {
      machine.shared.push_back(std::move(fitted));
    }
  }
  return machine;
}

double product_error(const planner::Device& device, DType dtype, const RankRates& rates) {
  return std::sqrt(misfit(device, dtype, rates.products) /
                   static_cast<double>(rates.products.size()));
}

JsonValue samples_json(const MachineSamples& samples, const planner::Machine& machine) {
  constexpr std::array kKinds = {"output", "input_gradient", "weight_gradient"};
  const RankRates& rates = samples.rates.front();
  JsonValue products = JsonValue::array();
  for (const ProductSample& sample : rates.products) {
    products.push_back(
        {{"kind", kKinds[static_cast<std::size_t>(sample.kind)]},
         {"m", sample.m},
         {"n", sample.n},
         {"k", sample.k},
         {"seconds", sample.seconds},
         {"fitted_seconds", product_seconds(machine.device, samples.dtype, sample)}});
  }
  return {{"device", samples.device_name},
          {"dtype", name_of(samples.dtype)},
          {"product_flops", rates.product_flops},
          {"attention_flops", rates.attention_flops},
          {"attention_by_head", rates.attention_by_head},
          {"block_bytes_per_second", rates.block_bytes},
          {"copy_bytes_per_second", rates.copy_bytes},
          {"logit_seconds", rates.logit_seconds},
          {"parameter_seconds", rates.parameter_seconds},
          {"kernel_seconds", rates.kernel_seconds},
          {"products", std::move(products)}};
}

}  // namespace heddle
