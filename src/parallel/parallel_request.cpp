#include "parallel/parallel_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace heddle {
namespace {

/// In the order of VocabularyPlacement.
constexpr std::array<std::string_view, 3> kVocabularies = {"replicated", "tensor", "pipeline"};

void check_routes(const ParallelRequest& request, std::vector<RequestProblem>& problems) {
  if (request.takes_routes()) return;
  const auto refuse = [&](const char* key, const std::string& value) {
    problems.push_back(
        {{key},
         fmt::format("{} = {} needs parallel.schedule = \"routes\" and parallel.pp above 1; set "
                     "them, or leave it out",
                     key, value)});
  };
  if (request.skip > 0.0) refuse("parallel.skip", fmt::format("{}", request.skip));
  if (!request.routes.empty()) refuse("parallel.routes", "\"" + request.routes + "\"");
}

void check_pipeline(const ParallelRequest& request, std::vector<RequestProblem>& problems) {
  check_routes(request, problems);
  if (request.pp > 1) return;
  if (request.chunks > 1) {
    problems.push_back(
        {{"parallel.chunks"},
         fmt::format("parallel.chunks = {} needs a pipeline; set parallel.pp above 1, or "
                     "chunks = 1",
                     request.chunks)});
  }
  if (request.divides_vocabulary_over_pp()) {
    problems.push_back(
        {{"parallel.vocabulary"},
         "parallel.vocabulary = \"pipeline\" needs a pipeline; set parallel.pp above "
         "1, or vocabulary = \"tensor\""});
  }
}

void check_ranks(const ParallelRequest& request, int ranks, std::vector<RequestProblem>& problems) {
  const std::int64_t needed = request.ranks();
  if (request.dp == 0 ? ranks % needed == 0 : ranks == needed) return;
  const std::string context = request.cp > 1 ? fmt::format("cp {} x ", request.cp) : "";
  const std::string sites = request.sites > 1 ? fmt::format("sites {} x ", request.sites) : "";
  problems.push_back(
      {{"parallel.dp", "parallel.cp", "parallel.tp", "parallel.pp", "parallel.sites"},
       request.dp == 0
           ? fmt::format(
                 "parallel.{}{}tp {} x pp {} = {} does not divide the {} ranks; use sizes whose "
                 "product does, or start {} ranks",
                 sites, context, request.tp, request.pp, needed, ranks, needed)
           : fmt::format(
                 "parallel.{}dp {} x {}tp {} x pp {} makes {} ranks, but {} {} started; start {} "
                 "(--ranks {} or the launcher), or change one of them",
                 sites, request.dp, context, request.tp, request.pp, needed, ranks,
                 ranks == 1 ? "is" : "are", needed, needed)});
}

}  // namespace

std::span<const std::string_view> vocabulary_names() { return kVocabularies; }

std::string_view name_of(VocabularyPlacement vocabulary) {
  return kVocabularies[static_cast<std::size_t>(vocabulary)];
}

int ParallelRequest::replicas_on(int ranks) const {
  if (dp > 0) return dp;
  return std::max(1, static_cast<int>(ranks / (std::int64_t{sites} * cp * tp * pp)));
}

std::vector<RequestProblem> problems_of(const ParallelRequest& request, int ranks) {
  std::vector<RequestProblem> problems;
  check_pipeline(request, problems);
  check_ranks(request, ranks, problems);
  return problems;
}

Schedule step_schedule(const ParallelRequest& request, std::int64_t microbatches) {
  const bool divides = request.divides_vocabulary_over_pp();
  PipeShape shape{.ranks = request.pp,
                  .microbatches = static_cast<int>(microbatches),
                  .chunks = request.chunks,
                  .vocabulary = divides ? request.vocabulary_algorithm : 0};
  if (request.takes_routes()) {
    shape.routes = make_routes(request.pp, request.skip, request.routes);
  }
  return lower(make_schedule(request.schedule, shape));
}

}  // namespace heddle
