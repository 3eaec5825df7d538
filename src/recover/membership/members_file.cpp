#include "recover/membership/members_file.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/strings.h"

namespace heddle::recover {

void write_members(const std::filesystem::path& file, const Roster& roster) {
  std::string text = fmt::format("# members of epoch {}\n", roster.epoch);
  for (const Member& member : roster.members) {
    text += SocketAddress{member.host, member.port}.text() + "\n";
  }
  try {
    write_file_atomically(real_file_system(), file, text);
  } catch (const Error& error) {
    log_warn("newcomers will not find this run: {}", error.message());
  }
}

std::vector<SocketAddress> read_members(const std::filesystem::path& file) {
  std::vector<SocketAddress> addresses;
  for (const auto& part : split(read_text_file(file), '\n')) {
    const std::string_view line = trim(part);
    if (line.empty() || line.starts_with('#')) continue;
    const auto colon = std::min(line.rfind(':'), line.size() - 1);
    const auto* const end = line.data() + line.size();
    std::uint16_t port = 0;
    in_addr host{};
    if (std::from_chars(line.data() + colon + 1, end, port).ptr != end || port == 0 ||
        inet_pton(AF_INET, std::string(line.substr(0, colon)).c_str(), &host) != 1) {
      fail(ErrorCode::data, "{}: \"{}\" is no address of a member", file.string(), line);
    }
    addresses.push_back({host.s_addr, htons(port)});
  }
  if (addresses.empty()) fail(ErrorCode::data, "{} has no members", file.string());
  return addresses;
}

}  // namespace heddle::recover
