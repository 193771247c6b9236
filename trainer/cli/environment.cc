#include "trainer/cli/environment.h"

#include <algorithm>
#include <string_view>

#include "common/os/address.h"
#include "common/text/split.h"

namespace psd {
namespace {

constexpr std::string_view kAnyRank = "auto";  // value of --rank

std::vector<std::string> addressesIn(std::string_view text) {
  std::vector<std::string> addresses = splitAtCommas(text);
  std::erase(addresses, "");
  return addresses;
}

Result<std::vector<std::string>> checkAddresses(const char* source, std::vector<std::string> addresses) {
  for (const std::string& address : addresses) {
    const Result<Address> parsed = parseAddress(address);
    if (!parsed.ok()) {
      return Error{ErrorCode::invalidArgument, std::string(source) + ": " + parsed.message()};
    }
    if (parsed->kind == Address::Kind::tcp && (parsed->port == 0 || parsed->host == "*")) {
      return Error{ErrorCode::invalidArgument,
                   std::string(source) + ": '" + address +
                       "' is an address to listen on; expected the daemon's host and port"};
    }
  }
  return addresses;
}

Error missing(const char* what, const Setting& given) {
  return {ErrorCode::invalidArgument, std::string(what) + " missing, though " + given.source + " is given"};
}

}  // namespace

std::optional<Setting> findSetting(const char* flag, const std::optional<std::string>& flagValue,
                                   std::initializer_list<const char*> variables,
                                   const EnvironmentGetter& environment) {
  if (flagValue) return Setting{flag, *flagValue};
  for (const char* variable : variables) {
    const char* value = environment(variable);
    if (value != nullptr && *value != '\0') return Setting{variable, value};
  }
  return std::nullopt;
}

Result<Placement> resolvePlacement(const std::optional<std::string>& rankFlag,
                                   const std::optional<std::string>& worldSizeFlag,
                                   const EnvironmentGetter& environment) {
  const auto rank = findSetting("--rank", rankFlag, {"RANK", "SLURM_PROCID"}, environment);
  const auto worldSize =
      findSetting("--world-size", worldSizeFlag, {"WORLD_SIZE", "SLURM_NTASKS"}, environment);
  Placement placement;
  placement.anyRank = rank && rank->text == kAnyRank;
  if (rank && !worldSize && !placement.anyRank) {
    return missing("--world-size (or WORLD_SIZE, SLURM_NTASKS) is", *rank);
  }
  if (worldSize) {
    PSD_ASSIGN_OR_RETURN(const uint64_t size, parseInteger(*worldSize, 1, kWorldSizeMax));
    if (!rank && size > 1) return missing("--rank (or RANK, SLURM_PROCID) is", *worldSize);
    placement.worldSize = static_cast<uint32_t>(size);
  }
  if (placement.anyRank) {
    if (!worldSize) placement.worldSize = 0;
  } else if (rank) {
    PSD_ASSIGN_OR_RETURN(const uint64_t value, parseInteger(*rank, 0, kWorldSizeMax - 1));
    if (value >= placement.worldSize) {
      return Error{ErrorCode::invalidArgument,
                   rank->source + ": rank " + rank->text + " is not below the world size " +
                       std::to_string(placement.worldSize) + " (" + worldSize->source +
                       "); ranks go from 0 to " + std::to_string(placement.worldSize - 1)};
    }
    placement.rank = Rank{static_cast<uint32_t>(value)};
  }
  placement.localRank = placement.rank.value;
  placement.localWorldSize = std::max(placement.worldSize, 1u);
  if (const auto local = findSetting("", {}, {"LOCAL_RANK"}, environment)) {
    PSD_ASSIGN_OR_RETURN(const uint64_t value, parseInteger(*local, 0, kWorldSizeMax - 1));
    placement.localRank = static_cast<uint32_t>(value);
  }
  if (const auto local = findSetting("", {}, {"LOCAL_WORLD_SIZE"}, environment)) {
    PSD_ASSIGN_OR_RETURN(const uint64_t value, parseInteger(*local, 1, kWorldSizeMax));
    placement.localWorldSize = static_cast<uint32_t>(value);
  }
  return placement;
}

Result<std::vector<std::string>> resolveServers(const std::vector<std::string>& flags,
                                                const EnvironmentGetter& environment, const char* flag) {
  if (!flags.empty()) {
    std::vector<std::string> addresses;
    for (const std::string& each : flags) {
      const std::vector<std::string> parts = addressesIn(each);
      if (parts.empty()) addresses.push_back(each);  // rejected below, with its text
      addresses.insert(addresses.end(), parts.begin(), parts.end());
    }
    return checkAddresses(flag, std::move(addresses));
  }
  if (const auto servers = findSetting("", {}, {"PSD_SERVER"}, environment)) {
    return checkAddresses("PSD_SERVER", addressesIn(servers->text));
  }
  if (const auto master = findSetting("", {}, {"MASTER_ADDR"}, environment)) {
    const bool isIpv6 = master->text.find(':') != std::string::npos;
    const std::string host = isIpv6 ? "[" + master->text + "]" : master->text;
    return checkAddresses("MASTER_ADDR", {"tcp://" + host + ":" + std::to_string(kDefaultPort)});
  }
  return std::vector<std::string>{"tcp://localhost:" + std::to_string(kDefaultPort)};
}

}  // namespace psd
