#include "planner/advice.h"

#include <fmt/format.h>

#include <cmath>

#include "planner/gemm.h"

namespace heddle::planner {
namespace {

constexpr std::int64_t kAligned = 64;

std::int64_t rounded(std::int64_t size, std::int64_t to) {
  return std::max(to, (size + to / 2) / to * to);
}
std::int64_t rounded_up(std::int64_t size, std::int64_t to) { return (size + to - 1) / to * to; }

class Adviser {
 public:
  Adviser(const Machine& machine, const Job& job, const Candidate& plan)
      : machine_(machine), job_(job), plan_(plan) {}

  std::vector<std::string> advise() {
    const ModelSpec& spec = job_.spec;
    const std::int64_t t = plan_.tp;
    check_aligned("MLP width", spec.ffn, t, rounded(spec.ffn, kAligned * t));
    check_aligned("hidden size", spec.hidden, t, rounded(spec.hidden, kAligned * t));
    // One rank's rows of the table, padded as Heddle does on a GPU, not the model's.
    const std::int64_t rows =
        rounded_up(spec.vocab, t * vocabulary_multiple(job_.stack.place())) / t;
    if (output_efficiency(rows) < 0.98) {
      say("the vocabulary of {} gives {} rows per rank, which run at {:.0f} % of the rate; pad it "
          "to "
          "{}",
          spec.vocab, rows, 100 * output_efficiency(rows), rounded_up(spec.vocab, kAligned * t));
    }
    check_heads();
    check_tokens();
    check_waves("the MLP's first product", ups() * spec.ffn / t, spec.hidden);
    check_waves("the product of q, k and v", (spec.heads + 2 * spec.kv_heads) * spec.head_dim / t,
                spec.hidden);
    return lines_;
  }

 private:
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  std::int64_t ups() const { return job_.spec.mlp == ModelSpec::Mlp::swiglu ? 2 : 1; }
  /// Of layers that have so many outputs or rows.
  double output_efficiency(std::int64_t size) const {
    return alignment_efficiency(machine_.device.gemm, {4096, static_cast<double>(size), 4096});
  }
  /// Of a layer that has so many outputs and one that has so many inputs, together.
  double efficiency(std::int64_t size) const {
    const auto inputs = static_cast<double>(size);
    const double of_inputs =
        alignment_efficiency(machine_.device.gemm, {4096, 4096, inputs, 1.0, inputs});
    return 2.0 / (1.0 / output_efficiency(size) + 1.0 / of_inputs);
  }

  void check_aligned(const char* name, std::int64_t whole, std::int64_t parts,
                     std::int64_t better) {
    const std::int64_t size = whole / parts;
    if (efficiency(size) >= 0.98) return;
    say("the {} of {} is {} on each of {} tp ranks, which runs at {:.0f} % of the rate; {} is "
        "aligned",
        name, whole, size, parts, 100 * efficiency(size), better);
  }

  /// Where attention was measured by size of heads, that is what counts; else how products over
  /// them are aligned.
  void check_heads() {
    constexpr std::int64_t kGood = 128;
    const std::int64_t size = job_.spec.head_dim;
    const Software& software = machine_.software;
    const double fraction = software.attention_by_head.empty()
                                ? efficiency(size)
                                : attention_efficiency(software, static_cast<double>(size)) /
                                      attention_efficiency(software, static_cast<double>(kGood));
    const bool is_known_bad =
        software.attention_by_head.empty() ? size % kAligned != 0 : fraction < 0.95;
    if (!is_known_bad) return;
    say("heads of {} run at {:.0f} % of the rate; {} heads of {} are aligned", size, 100 * fraction,
        std::max<std::int64_t>(1, job_.spec.hidden / kGood), kGood);
  }

  void check_tokens() {
    const std::int64_t tokens = plan_.sequences * job_.seq_len / plan_.cp;
    if (output_efficiency(tokens) >= 0.98) return;
    say("micro-batches of {} tokens run at {:.0f} % of the rate; {} are aligned", tokens,
        100 * output_efficiency(tokens), rounded_up(tokens, kAligned));
  }

  void check_waves(const char* name, std::int64_t width, std::int64_t depth) {
    const GemmShape shape{plan_.tokens(job_), static_cast<double>(width),
                          static_cast<double>(depth)};
    double best = 0.0;
    TileCount count;
    for (int i = 0; i < machine_.device.gemm.tiles; ++i) {
      const auto& tile = machine_.device.gemm.tile[static_cast<std::size_t>(i)];
      const auto tried = count_tiles(shape, tile.rows, tile.cols, machine_.device.processors);
      const double all = tried.efficiency * tile.efficiency;
      if (all > best) best = all, count = tried;
    }
    if (best >= 0.85) return;
    say("{} has {:.0f} tiles in {:.0f} waves of {}, which keep {:.0f} % of the processors busy; "
        "larger micro-batches or a smaller tp fill them",
        name, count.tiles, count.waves, machine_.device.processors, 100 * count.efficiency);
  }

  const Machine& machine_;
  const Job& job_;
  const Candidate& plan_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> shape_advice(const Machine& machine, const Job& job,
                                      const Candidate& candidate) {
  return Adviser(machine, job, candidate).advise();
}

}  // namespace heddle::planner
