#include "cli/elastic.h"

#include <arpa/inet.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cli/ended.h"
#include "cli/launcher.h"
#include "cli/local_processes.h"
#include "cli/ranks.h"
#include "cli/tcp_settings.h"
#include "comm/agree.h"
#include "comm/nccl/nccl_backend.h"
#include "comm/staged/staged_backend.h"
#include "comm/stopped_by_peer.h"
#include "recover/membership/members_file.h"
#include "recover/membership/tcp_company.h"
#include "train/model_setup.h"

namespace heddle::cli {
namespace {

using recover::Company;

constexpr const char* kMembersFile = "members";
constexpr const char* kMemberHint = "take a line of the file members in the folder of the run";

SocketAddress address_named(const std::string& text) {
  const auto colon = text.rfind(':');
  std::uint16_t port = 0;
  if (colon != std::string::npos) {
    std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  }
  if (port == 0) {
    throw Error(ErrorCode::usage, fmt::format("--member {}: no HOST:PORT", text), kMemberHint);
  }
  try {
    return {host_named(text.substr(0, colon)), htons(port)};
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, fmt::format("--member {}: {}", text, error.message()),
                kMemberHint);
  }
}

std::vector<SocketAddress> contacts(const ElasticOptions& options,
                                    const std::filesystem::path& run_folder) {
  if (options.members.empty()) return recover::read_members(run_folder / kMembersFile);
  std::vector<SocketAddress> addresses;
  for (const std::string& member : options.members) addresses.push_back(address_named(member));
  return addresses;
}

recover::TcpCompanyOptions company_options(const config::RunConfig& config,
                                           const ElasticOptions& options, Device device) {
  const Launcher launcher = detect_launcher(process_environment);
  const auto in_nanoseconds = [](double seconds) {
    return std::chrono::duration_cast<recover::Duration>(std::chrono::duration<double>(seconds));
  };
  recover::TcpCompanyOptions company{.joining = std::chrono::duration<double>(config.run.timeout),
                                     .timeout = in_nanoseconds(config.recover.timeout),
                                     .patience = in_nanoseconds(config.run.timeout),
                                     .members_file = config.folder() / kMembersFile};
  if (options.joins) {
    company.place.token = run_token(process_environment);
    company.contacts = contacts(options, config.folder());
  } else {
    company.place = tcp_place(launcher, process_environment);
  }
  if (device.kind != Device::Kind::cpu) {
    company.over = [device](std::shared_ptr<CommBackend> host) {
      if (host->size() == 1) return host;
      return has_nccl() ? over_nccl(std::move(host), device)
                        : through_host(std::move(host), device);
    };
  }
  return company;
}

/// Of a newcomer that heddle launch started: it belongs to the run now.
void tell_launcher() {
  const char* const file = process_environment(kLetInVariable);
  if (file == nullptr) return;
  const char in = 1;
  static_cast<void>(!write(launcher_rank(kLetInVariable, file), &in, 1));
}

}  // namespace

void allow_open_files(int ranks) {
  // With each of the others: connections of this epoch and of the last one, for notes both ways,
  // and one that is being made.
  constexpr rlim_t kOfRank = 5, kOwn = 64;
  const rlim_t needed = kOfRank * static_cast<rlim_t>(ranks) + kOwn;
  rlimit allowed{};
  getrlimit(RLIMIT_NOFILE, &allowed);
  allowed.rlim_cur = allowed.rlim_max;
  setrlimit(RLIMIT_NOFILE, &allowed);
  if (allowed.rlim_max >= needed) return;
  throw Error(ErrorCode::resources,
              fmt::format("each of {} ranks that may be lost opens up to {} files, and this system "
                          "allows a process {}",
                          ranks, needed, allowed.rlim_max),
              fmt::format("raise the hard limit of open files to {} (ulimit -Hn; nofile in "
                          "/etc/security/limits.conf; LimitNOFILE of a service), or use fewer "
                          "ranks",
                          needed));
}

void require_elastic(const ElasticOptions& options) {
  const Launcher launcher = detect_launcher(process_environment);
  if (options.joins || (launcher.size > 1 && !launcher.joins_by_mpi)) return;
  throw Error(
      ErrorCode::usage,
      fmt::format("recover.elastic needs ranks that are processes joined over TCP, not {}",
                  launcher.joins_by_mpi ? "ranks of MPI" : "threads of one"),
      "start them with heddle launch --ranks N -- train RUN.toml, each by itself with RANK, "
      "WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or with srun --mpi=none");
}

void run_in_company(const config::RunConfig& config, const ElasticOptions& options,
                    Device::Kind kind,
                    const std::function<void(Company&, Device, const bool& is_first)>& body) {
  const Device device = device_of(kind, detect_launcher(process_environment).local_rank);
  // A newcomer stops the others only when it can compute with them.
  if (device.kind != Device::Kind::cpu) prepare_nccl(device);
  recover::TcpCompanyOptions company_of = company_options(config, options, device);
  std::atomic<bool> has_told = false;
  company_of.tell = [&](const std::string& text) {
    log_line(LogLevel::error, text);
    has_told = true;
  };
  bool is_first = false, is_in = !options.joins;
  Company* company = nullptr;
  company_of.on_epoch = [&](const recover::Epoch& epoch) {
    if (!std::exchange(is_in, true)) tell_launcher();
    is_first = epoch.members.front() == company->self();
  };
  try {
    const auto made = recover::make_tcp_company(std::move(company_of));
    company = made.get();
    body(*made, device, is_first);
  } catch (const AgreedInWorld& error) {
    // Not always all ranks: those that wait, which the first may be one of, do not know it.
    if (error.is_first()) throw;
    throw Ended{static_cast<int>(error.code())};
  } catch (const recover::Left& left) {
    log_info("{}", left.message());
    throw Ended{static_cast<int>(left.code())};
  } catch (const StoppedByPeer& stop) {
    if (!has_told) log_line(LogLevel::error, stop.message());
    throw Ended{static_cast<int>(stop.code())};
  } catch (const Error& error) {
    if (has_told) throw Ended{static_cast<int>(error.code())};
    throw;
  }
}

}  // namespace heddle::cli
