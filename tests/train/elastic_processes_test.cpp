#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/log.h"
#include "comm/tcp_listener.h"
#include "observe/epochs.h"
#include "recover/membership/members_file.h"
#include "recover/membership/tcp_company.h"
#include "train/model_setup.h"
#include "train/tiny_run.h"
#include "train/trainer.h"

namespace heddle {
namespace {

/// A run whose ranks are processes that find each other over TCP; each is a fork of the test.
class ElasticProcesses {
 public:
  /// `model`: what differs from TinyRun's.
  ElasticProcesses(int ranks, const std::vector<std::string>& settings,
                   const Json& model = Json::object())
      : ranks_(ranks),
        config_(configured(model, settings)),
        meeting_(listen_on(0, ranks, TcpReach::this_machine)) {
    for (int rank = 0; rank < ranks; ++rank) start(rank, false);
    close(meeting_.socket);
  }
  ~ElasticProcesses() {
    for (const pid_t child : children_) {
      if (child > 0) kill(child, SIGKILL);
      if (child > 0) waitpid(child, nullptr, 0);
    }
  }
  ElasticProcesses(const ElasticProcesses&) = delete;
  ElasticProcesses& operator=(const ElasticProcesses&) = delete;

  void end_at_once(int process) {
    pid_t& child = children_[static_cast<std::size_t>(process)];
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    child = 0;
  }
  /// Finds the others by the members file.
  void join() { start(static_cast<int>(children_.size()), true); }

  bool wait_for_step(std::int64_t step) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < until) {
      if (std::ssize(steps()) >= step) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  /// Those whose line is whole.
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> steps;
    const auto file = run_.run_folder() / "metrics.jsonl";
    if (!std::filesystem::exists(file)) return steps;
    const std::string text = read_text_file(file);
    for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos;
         at = end + 1) {
      const Json line = parse_json(text.substr(at, end - at), "metrics.jsonl");
      if (line.contains("loss")) steps.push_back(line["step"]);
    }
    return steps;
  }
  /// Of a process that is there; 128 + N where signal N ended it.
  int status(int process) {
    pid_t& child = children_[static_cast<std::size_t>(process)];
    int state = 0;
    waitpid(child, &state, 0);
    child = 0;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  }
  Json report() const {
    return parse_json(read_text_file(run_.run_folder() / "report.json"), "report.json");
  }
  std::int64_t total() const { return config_.total_steps(); }

 private:
  config::RunConfig configured(const Json& model, const std::vector<std::string>& settings) const {
    Json config = parse_json(read_text_file(run_.path() / "config.json"), "config.json");
    config.update(model);
    run_.write("config.json", config.dump());
    return load_run(run_.path() / "run.toml", settings, ranks_).config;
  }

  void start(int number, bool is_newcomer) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      be_process(number, is_newcomer);
    }
    children_.push_back(child);
  }

  [[noreturn]] void be_process(int number, bool is_newcomer) const {
    int status = 0;
    try {
      const auto members = run_.path() / "members";
      recover::TcpCompanyOptions options{
          .place = {.rank = number,
                    .size = ranks_,
                    .port = meeting_.port,
                    .listening = number == 0 ? meeting_.socket : -1,
                    .token = Token("the token of this test", "a test")},
          .timeout = std::chrono::seconds(20),
          .members_file = members};
      if (is_newcomer) options.contacts = recover::read_members(members);
      const auto company = recover::make_tcp_company(std::move(options));
      TrainOptions train_options;
      train_options.terminal.is_silent = true;
      train(config_, train_options, *company);
    } catch (const Error& error) {
      log_line(LogLevel::error, fmt::format("process {}: {}", number, error.message()));
      status = static_cast<int>(error.code());
    } catch (const std::exception& error) {
      log_line(LogLevel::error, fmt::format("process {}: {}", number, error.what()));
      status = 99;
    }
    _exit(status);
  }

  const TinyRun run_;
  const int ranks_;
  const config::RunConfig config_;
  const TcpListener meeting_;
  std::vector<pid_t> children_;
};

const std::vector<std::string> kSettings = {
    "train.steps=400",     "train.tokens_per_step=256", "train.microbatch=1",
    "checkpoint.every=50", "parallel.zero=0",           "parallel.dp=2",
    "parallel.pp=2",       "recover.elastic=true",      "recover.timeout=20"};

void expect_every_step_once(const ElasticProcesses& run) {
  std::int64_t last = 0;
  for (const std::int64_t step : run.steps()) EXPECT_EQ(step, ++last);
  EXPECT_EQ(last, run.total());
}

TEST(ElasticProcesses, OneOfFourIsKilledAndAnotherTakesItsPlace) {
  ElasticProcesses run(4, kSettings);
  ASSERT_TRUE(run.wait_for_step(20));
  run.end_at_once(2);
  run.join();
  for (const int process : {0, 1, 3, 4}) EXPECT_EQ(run.status(process), 0) << process;
  expect_every_step_once(run);
  const Json epochs = run.report()["epochs"];
  ASSERT_GE(epochs.size(), 2u);
  double lost = 0;
  for (const auto& [part, seconds] : epochs[1]["seconds"].items()) lost += seconds.get<double>();
  EXPECT_LT(lost, 10.0) << epochs[1];
  RecordProperty("what_the_loss_cost", epochs[1].dump());
  EXPECT_EQ(epochs.back()["mesh"], "dp=2 tp=1 pp=2") << epochs;
  EXPECT_NE(epochs[1]["source"].get<std::string>().find("rank 2 is lost: stage 1 from its replica"),
            std::string::npos)
      << epochs[1];
}

/// No other process has the second stage of four: it is made of those beside it.
TEST(ElasticProcesses, AKilledStageIsMadeOfItsNeighbours) {
  const Json model = {{"hidden_size", 16},
                      {"intermediate_size", 24},
                      {"num_hidden_layers", 4},
                      {"num_attention_heads", 2}};
  std::vector<std::string> settings = kSettings;
  settings.insert(settings.end(),
                  {"parallel.dp=1", "parallel.pp=4", "recover.stages=\"checkfree\""});
  ElasticProcesses run(4, settings, model);
  ASSERT_TRUE(run.wait_for_step(20));
  run.end_at_once(1);
  run.join();
  for (const int process : {0, 2, 3, 4}) EXPECT_EQ(run.status(process), 0) << process;
  expect_every_step_once(run);
  const Json epochs = run.report()["epochs"];
  ASSERT_GE(epochs.size(), 2u);
  EXPECT_EQ(epochs.back()["mesh"], "dp=1 tp=1 pp=4") << epochs;
  const std::string source = epochs[1]["source"];
  EXPECT_NE(source.find("stage 1 as the mean of stages 0 and 2, weighted"), std::string::npos)
      << source;
}

TEST(ElasticProcesses, TheFirstIsKilledAndTheOthersGoOn) {
  ElasticProcesses run(4, kSettings);
  ASSERT_TRUE(run.wait_for_step(20));
  run.end_at_once(0);
  for (const int process : {1, 2, 3}) EXPECT_EQ(run.status(process), 0) << process;
  expect_every_step_once(run);
  const Json epochs = run.report()["epochs"];
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_EQ(epochs[1]["mesh"], "dp=1 tp=1 pp=2") << epochs;
  EXPECT_EQ(epochs[1]["spares"], 1) << epochs;
}

}  // namespace
}  // namespace heddle
