#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace heddle {

/// What a run is doing, for what is said to a signal.
struct RunPlace {
  enum class Doing { starting, stepping, recording, evaluating, sampling, saving, ending, done };
  Doing doing = Doing::starting;
  std::int64_t step = 0;    ///< the last one that is finished
  std::int64_t saved = -1;  ///< the step of the newest checkpoint; -1: there is none
  bool saves = true;        ///< when it is stopped
  bool has_sites = false;   ///< which stop where they meet next
  bool may_leave = false;   ///< SIGTERM tells this rank to, and the others go on
};

/// While it lives, SIGINT, SIGTERM, SIGHUP and SIGUSR2 ask for a stop instead of ending the
/// process, which is acknowledged at once, and SIGUSR1 for a checkpoint. A SIGHUP that was ignored
/// before (nohup) stays so. A second signal ends the process at once, with status 128 + its number,
/// as does the first one where no step can be lost, while the run starts. Half a second counts as
/// one signal: a terminal, a launcher and a batch system may each pass on the same one. All of a
/// process see the same signals: ranks that are threads have one object each.
class StopSignals {
 public:
  /// `speaks`: for the process whose lines people read. `tell_others` is called, on another thread,
  /// with the reason when the process is about to end at once.
  explicit StopSignals(bool speaks, std::function<void(const std::string& why)> tell_others = {});
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  void set_place(const RunPlace& place);
  /// The number of the signal that asked for a stop, or 0.
  int stop_asked() const;
  /// How often a checkpoint was asked for.
  int checkpoints_asked() const;

  /// From now on signals go to `to`, on another thread, and are not answered here.
  void pass_on(std::function<void(int signal)> to);
  /// Between fork and exec: the new program gets the signals as if nobody had handled them.
  static void forget_in_child();

 private:
  std::function<void(const std::string&)> tell_others_;
  sigset_t mask_before_;
};

/// "SIGINT"; any that StopSignals handles.
const char* signal_name(int signal);
/// The exit status of a process that a signal ended: what shells show for one.
int status_of_signal(int signal);
/// The status with which a rank ended at once, when that is why the world failed: the others end
/// with the same.
std::optional<int> status_of_rank_ended_at_once(const std::string& failure);

/// What is said to a first signal, to a second one, and to SIGUSR1.
std::string first_signal_line(int signal, const RunPlace& place);
std::string ended_at_once_line(int signal, const RunPlace& place);
std::string checkpoint_signal_line(const RunPlace& place);

}  // namespace heddle
