#include "train/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "base/error.h"

namespace heddle {
namespace {

std::atomic<int> received_signal{0};  // a handler can reach nothing else
std::atomic<int> watchers{0};         // ranks that are threads of this process have one each

void on_signal(int signal) {
  if (received_signal.exchange(signal) != 0) _exit(static_cast<int>(ErrorCode::stopped));
}

void handle(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  if (watchers++ > 0) return;
  received_signal = 0;
  handle(on_signal);
}

StopSignals::~StopSignals() {
  if (--watchers == 0) handle(SIG_DFL);
}

const char* StopSignals::received() const {
  const int signal = received_signal;
  return signal == 0 ? nullptr : signal == SIGINT ? "SIGINT" : "SIGTERM";
}

}  // namespace heddle
