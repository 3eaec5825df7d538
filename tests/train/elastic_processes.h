#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <limits>
#include <memory>
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

/// Up to where a run may go, in memory that processes share.
using Gate = std::atomic<std::int64_t>;

/// A company that waits with the end of a step until the gate lets it through.
class Held : public recover::Company {
 public:
  Held(std::unique_ptr<recover::Company> company, const Gate& gate)
      : company_(std::move(company)), gate_(gate) {}

  recover::MemberId self() const override { return company_->self(); }
  recover::Epoch next() override { return company_->next(); }
  void stepping(bool is_in_step) override { company_->stepping(is_in_step); }
  bool finished(std::int64_t step) override {
    while (step > gate_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return company_->finished(step);
  }
  bool wants_change() const override { return company_->wants_change(); }
  void change() override { company_->change(); }
  void leave() override { company_->leave(); }
  void end() override { company_->end(); }

 private:
  const std::unique_ptr<recover::Company> company_;
  const Gate& gate_;
};

/// A run whose ranks are processes that find each other over TCP; each is a fork of the test.
class ElasticProcesses {
 public:
  /// `model`: what differs from TinyRun's. `silence`: a process that gets no processor is not taken
  /// for lost before that.
  ElasticProcesses(int ranks, const std::vector<std::string>& settings,
                   const Json& model = Json::object(), recover::Duration silence = {})
      : run_(model),
        ranks_(ranks),
        silence_(silence),
        config_(load_run(run_.path() / "run.toml", settings, ranks).config),
        meeting_(listen_on(0, ranks, TcpReach::this_machine)) {
    for (int rank = 0; rank < ranks; ++rank) start(rank, false);
    close(meeting_.socket);
  }
  ~ElasticProcesses() {
    for (const pid_t child : children_) {
      if (child > 0) kill(child, SIGKILL);
      if (child > 0) waitpid(child, nullptr, 0);
    }
    munmap(gate_, sizeof(Gate));
  }
  ElasticProcesses(const ElasticProcesses&) = delete;
  ElasticProcesses& operator=(const ElasticProcesses&) = delete;

  void end_at_once(int process) {
    epochs_before_ = epochs().size();
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
  /// The run may make so many steps and no more.
  void hold_behind(std::int64_t step) { *gate_ = step; }
  void go_on() { *gate_ = std::numeric_limits<std::int64_t>::max(); }
  /// Lets it make a step now and then, until so many have made one together that compute or wait,
  /// since the last was ended; false where the run ends before.
  bool wait_for_members(int members) {
    while (std::ssize(steps()) < total()) {
      const std::vector<observe::EpochRow> since = epochs();
      const std::int64_t step = std::ssize(steps());
      if (since.size() > epochs_before_ && since.back().members == members &&
          step > since.back().step) {
        return true;
      }
      hold_behind(step + 1);
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
      while (std::ssize(steps()) == step && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      std::this_thread::sleep_until(until);
    }
    return false;
  }
  std::vector<observe::EpochRow> epochs() const {
    return observe::read_epochs(run_.run_folder() / "epochs.jsonl");
  }
  /// Those that are there.
  std::vector<int> processes() const {
    std::vector<int> there;
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (children_[i] > 0) there.push_back(static_cast<int>(i));
    }
    return there;
  }
  std::filesystem::path last() const { return run_.checkpoint(total()); }
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
          .least_silence = silence_,
          .members_file = members};
      if (is_newcomer) options.contacts = recover::read_members(members);
      Held company(recover::make_tcp_company(std::move(options)), *gate_);
      TrainOptions train_options;
      train_options.terminal.is_silent = true;
      train(config_, train_options, company);
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
  const recover::Duration silence_;
  const config::RunConfig config_;
  const TcpListener meeting_;
  Gate* const gate_ =
      new (mmap(nullptr, sizeof(Gate), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          Gate(std::numeric_limits<std::int64_t>::max());
  std::vector<pid_t> children_;
  std::size_t epochs_before_ = 0;  // when the last process was ended
};

inline void expect_every_step_once(const ElasticProcesses& run) {
  std::int64_t last = 0;
  for (const std::int64_t step : run.steps()) EXPECT_EQ(step, ++last);
  EXPECT_EQ(last, run.total());
}

}  // namespace heddle
