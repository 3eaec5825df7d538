#include "recover/membership/tcp_company.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "comm/stopped_by_peer.h"
#include "comm/tcp/long_way.h"
#include "comm/tcp/tcp_measure.h"
#include "comm/tcp/tcp_world.h"
#include "recover/membership/first_roster.h"
#include "recover/membership/member_service.h"
#include "recover/membership/members_file.h"

namespace heddle::recover {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// For a process that hangs where the run does without it.
constexpr Duration kGrace = 10s;

double to_seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

class TcpCompany : public Company {
 public:
  explicit TcpCompany(TcpCompanyOptions options) : options_(std::move(options)) {
    if (!options_.place.token) {
      throw Error(ErrorCode::usage,
                  "a run whose ranks may change needs a token: who may join it is known by that",
                  "set HEDDLE_TOKEN_FILE on all ranks, or start them with heddle launch");
    }
    options_.contacts.empty() ? meet() : come_to_others();
  }

  ~TcpCompany() override { service_.reset(); }

  MemberId self() const override { return self_.id; }

  Epoch next() override {
    while (true) {
      const Roster roster = service_->wait_for_roster(epoch_);
      world_.reset();
      made_.reset();
      epoch_ = static_cast<std::int64_t>(roster.epoch);
      auto links = connect(roster);
      if (!links) continue;
      make_world(roster, std::move(*links));
      try {
        dress_world();
      } catch (const Error& error) {
        // Where a rank was lost meanwhile, others notice it too.
        if (error.code() != ErrorCode::peer || !ends_within(roster.epoch, kGrace)) throw;
        continue;
      }
      if (roster.members.front().id == self_.id && !options_.members_file.empty()) {
        write_members(options_.members_file, roster);
      }
      Epoch epoch = describe(roster);
      if (options_.on_epoch) options_.on_epoch(epoch);
      return epoch;
    }
  }

  void stepping(bool is_in_step) override { service_->stepping(is_in_step); }
  bool finished(std::int64_t step) override { return service_->finished(step); }
  bool wants_change() const override { return service_->wants_change(); }
  void change() override { service_->change(); }
  void leave() override { service_->leave(); }
  void end() override { service_->end(); }

 private:
  using Links = std::vector<TcpLink>;

  /// Those who start a run.
  void meet() {
    JoinedRanks joined =
        join_ranks(options_.place, {.limit = options_.joining, .tell = options_.tell});
    const std::uint16_t own = ntohs(address_of(joined.listening.get(), getsockname).port);
    auto agreed = agree_on_first(options_.place, joined, called_at(own), options_.joining);
    self_ = agreed.roster.members[static_cast<std::size_t>(options_.place.rank)];
    first_ = std::move(joined.sockets);
    serve(std::move(joined.listening),
          {.run = agreed.run, .self = self_, .first = std::move(agreed.roster)});
  }

  void come_to_others() {
    const bool is_local = std::ranges::all_of(
        options_.contacts, [](const SocketAddress& at) { return is_loopback(at.host); });
    const TcpListener own =
        listen_on(0, 1, is_local ? TcpReach::this_machine : TcpReach::everybody);
    Socket listening(own.socket);
    self_ = {.id = random_number(), .host = own_host(), .port = htons(called_at(own.port))};
    MemberService::Setup setup{.self = self_};
    for (const SocketAddress& at : options_.contacts) {
      setup.contacts.push_back({.id = 1, .host = at.host, .port = at.port});
    }
    serve(std::move(listening), std::move(setup));
  }

  /// Where others reach this process, in host order.
  std::uint16_t called_at(std::uint16_t own) const {
    return options_.called_at ? options_.called_at(own) : own;
  }

  /// The address of this machine on the way to the others.
  std::uint32_t own_host() const {
    const auto until = Clock::now() + options_.timeout;
    while (true) {
      for (const SocketAddress& contact : options_.contacts) {
        const Socket made = call_once(contact, std::min(until, Clock::now() + 2s));
        if (made) return address_of(made.get(), getsockname).host;
      }
      if (Clock::now() >= until) {
        throw Error(ErrorCode::peer,
                    fmt::format("none of {} known member{} of the run can be reached, as {}",
                                options_.contacts.size(), options_.contacts.size() == 1 ? "" : "s",
                                options_.contacts.front().text()),
                    "the run has ended, or goes on elsewhere");
      }
      std::this_thread::sleep_for(200ms);
    }
  }

  void serve(Socket listening, MemberService::Setup setup) {
    setup.token = options_.place.token;
    setup.timeout = options_.timeout;
    setup.least_silence = options_.least_silence;
    setup.patience = options_.patience;
    setup.grace = kGrace;
    service_ = std::make_shared<MemberService>(std::move(listening), std::move(setup));
  }

  /// A connection to every other member; nothing where the epoch ends before. Of two, the later in
  /// the roster calls.
  std::optional<Links> connect(const Roster& roster) {
    const auto own = *roster.place_of(self_.id);
    Links links(roster.members.size());
    for (std::size_t place = 0; place < links.size(); ++place) {
      if (place == own) continue;
      Socket& socket = links[place].socket;
      if (roster.epoch == 0 && !first_.empty()) {
        socket = std::move(first_[place]);
      } else {
        socket = place < own ? call(roster, own, place) : await(roster, place);
      }
      if (!socket) return std::nullopt;
      links[place].is_far = round_trip(socket).count() >= kLongRoundTrip;
    }
    first_.clear();
    return links;
  }

  bool ends_within(std::uint64_t epoch, Duration limit) const {
    const auto until = Clock::now() + limit;
    while (service_->is_current(epoch)) {
      if (Clock::now() >= until) return false;
      std::this_thread::sleep_for(20ms);
    }
    return true;
  }

  /// Whether there is still time for the rank to come; else it is lost.
  bool may_come(const Roster& roster, std::size_t rank, Clock::time_point since) {
    if (!service_->is_current(roster.epoch)) return false;
    const Duration limit = service_->time_to_come(roster.epoch, static_cast<int>(rank));
    if (Clock::now() - since < limit) return true;
    service_->lose(roster.epoch, static_cast<int>(rank),
                   fmt::format("rank {} has not come to epoch {} after {:.0f} s", rank,
                               roster.epoch, to_seconds(limit)));
    return false;
  }

  Socket call(const Roster& roster, std::size_t own, std::size_t lower) {
    const Member& to = roster.members[lower];
    const SocketAddress address{to.host, to.port};
    const Hello hello = own_hello(static_cast<int>(own), static_cast<int>(roster.members.size()),
                                  ntohs(self_.port), static_cast<int>(roster.epoch));
    const auto since = Clock::now();
    struct NotInTime {};
    while (may_come(roster, lower, since)) {
      Socket made = call_once(address, Clock::now() + 1s);
      try {
        if (made && say_hello(made, hello, options_.place.token, address.text(), [&] {
              if (!may_come(roster, lower, since)) throw NotInTime{};
            })) {
          return made;
        }
      } catch (const NotInTime&) {
        break;
      } catch (const Error& error) {  // whoever listens there now is not the member
        log_warn("rank {}: {}", lower, error.message());
      }
      std::this_thread::sleep_for(20ms);
    }
    return Socket();
  }

  Socket await(const Roster& roster, std::size_t higher) {
    const auto since = Clock::now();
    while (may_come(roster, higher, since)) {
      Socket made = service_->take_caller(roster.epoch, static_cast<int>(higher));
      if (made) return made;
    }
    return Socket();
  }

  void make_world(const Roster& roster, Links links) {
    const std::uint64_t epoch = roster.epoch;
    const std::weak_ptr<MemberService> service = service_;  // calls may outlive this company
    made_ = std::make_unique<TcpWorld>(
        static_cast<int>(*roster.place_of(self_.id)), std::move(links),
        TcpCare{.checks = true, .on_lost = [service, epoch](int rank, const std::string& why) {
                  if (const auto there = service.lock()) there->lose(epoch, rank, why);
                }});
    service_->watch(epoch, made_->failure, made_->flight);
  }

  void dress_world() {
    const std::weak_ptr<MemberService> service = service_;
    auto all = made_->all([service](const std::string& reason) {
      if (const auto there = service.lock()) there->abort(reason);
    });
    if (options_.over) all = options_.over(std::move(all));
    world_ = std::make_unique<World>(
        std::make_unique<Communicator>(std::move(all), made_->flight, "world"));
  }

  Epoch describe(const Roster& roster) const {
    Epoch epoch{.number = roster.epoch, .step = roster.step, .world = world_.get()};
    for (const Member& member : roster.members) epoch.members.push_back(member.id);
    if (roster.epoch == 0) return epoch;
    const Causes::Cause cause = service_->cause_of(roster.epoch - 1);
    epoch.cause = cause.text;
    epoch.detect = to_seconds(cause.detect);
    epoch.agree = to_seconds(cause.decided_at - cause.ended_at);
    epoch.connect = to_seconds(service_->now() - cause.decided_at);
    return epoch;
  }

  const TcpCompanyOptions options_;
  Member self_;
  std::vector<Socket> first_;  // connections of those who started together, until they are used
  std::shared_ptr<MemberService> service_;
  std::unique_ptr<TcpWorld> made_;
  std::unique_ptr<World> world_;
  std::int64_t epoch_ = -1;  // of that world
};

}  // namespace

std::unique_ptr<Company> make_tcp_company(TcpCompanyOptions options) {
  return std::make_unique<TcpCompany>(std::move(options));
}

}  // namespace heddle::recover
