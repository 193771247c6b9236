#include "server/daemon/operator_commands.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "common/config/json_file.h"
#include "common/os/socket.h"
#include "common/text/text.h"
#include "server/rpc/admin_client.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

// For one of several addresses; a daemon that is there accepts sooner.
constexpr std::chrono::milliseconds kReachTimeout{5'000};

std::string bytes(uint64_t count) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(count);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); unit++) value /= 1024;
  return unit == 0 ? fmt::format("{} B", count) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string duration(double seconds) {
  auto whole = static_cast<uint64_t>(seconds);
  if (whole < 60) return fmt::format("{:.1f} s", seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

/// Rows of cells under a heading, columns aligned; numbers to the right.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); i++) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    out += "  ";
    for (size_t i = 0; i < row.size(); i++) {
      out += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    out += "\n";
  }
  return out;
}

/// "topk:fraction=0.01 66.1x": how a trainer's gradients travel, and how much smaller than as float32.
std::string compression(const Json& trainer) {
  const auto codec = trainer["codec"].get<std::string>();
  const auto sent = trainer["bytes_pushed"].get<double>();
  if (codec == "none" || sent == 0) return codec;
  return fmt::format("{} {:.1f}x", codec, trainer["value_bytes_pushed"].get<double>() / sent);
}

std::string waitsFor(const Json& trainer) {
  if (!trainer["connected"].get<bool>()) return "its connection";
  const auto what = trainer["waits_for"].get<std::string>();
  return what.empty() ? "-" : what;
}

std::string trainersTable(const Json& status) {
  std::vector<std::vector<std::string>> rows = {
      {"rank", "process", "step", "staleness", "pulled", "pushed", "last seen", "lease left", "waits for"}};
  const auto usesCodec = [](const Json& trainer) { return trainer["codec"] != "none"; };
  const bool codecs = std::any_of(status["trainers"].begin(), status["trainers"].end(), usesCodec);
  if (codecs) rows.front().push_back("codec");
  const auto hasSeveral = [](const Json& trainer) { return trainer["connections"].get<uint32_t>() > 1; };
  const bool several = std::any_of(status["trainers"].begin(), status["trainers"].end(), hasSeveral);
  if (several) rows.front().push_back("connections");
  const auto isSized = [](const Json& trainer) { return trainer["nominal_batch"] != 0; };
  const bool sizes = std::any_of(status["trainers"].begin(), status["trainers"].end(), isSized);
  if (sizes) rows.front().push_back("batch");
  for (const Json& trainer : status["trainers"]) {
    rows.push_back({std::to_string(trainer["rank"].get<uint32_t>()),
                    fmt::format("{}@{}", trainer["pid"].get<uint32_t>(), trainer["host"].get<std::string>()),
                    std::to_string(trainer["step"].get<uint64_t>()),
                    std::to_string(trainer["staleness"].get<uint64_t>()), bytes(trainer["bytes_pulled"]),
                    bytes(trainer["bytes_pushed"]),
                    fmt::format("{:.1f} s ago", trainer["last_seen_ms"].get<double>() / 1000),
                    fmt::format("{:.1f} s", trainer["lease_left_ms"].get<double>() / 1000),
                    waitsFor(trainer)});
    if (codecs) rows.back().push_back(compression(trainer));
    if (several) rows.back().push_back(std::to_string(trainer["connections"].get<uint32_t>()));
    if (sizes) rows.back().push_back(std::to_string(trainer["batch"].get<uint64_t>()));
  }
  return table(rows);
}

std::string shardsTable(const Json& status) {
  std::vector<std::vector<std::string>> rows = {{"shard", "elements", "version", "device"}};
  for (const Json& shard : status["shards"]) {
    rows.push_back({std::to_string(shard["id"].get<uint32_t>()),
                    std::to_string(shard["elements"].get<uint64_t>()),
                    std::to_string(shard["version"].get<uint64_t>()), shard["device"].get<std::string>()});
  }
  return table(rows);
}

/// "waiting    ranks 0, 2 wait in round 17 (sync of others) for rank 1, since 3.2 s"
std::string waitingLine(const Json& waiting) {
  std::string reason = joined(waiting["for"], "; ", [](const Json& one) {
    return fmt::format("rank {}, since {}", one["rank"].get<uint32_t>(),
                       duration(one["ms"].get<double>() / 1000));
  });
  if (const auto joins = waiting["joins"].get<uint32_t>(); joins > 0) {
    reason += fmt::format("{}{} to join", reason.empty() ? "" : "; ", joins);
  }
  const auto number = [](const Json& rank) { return std::to_string(rank.get<uint32_t>()); };
  const std::string ranks = joined(waiting["ranks"], ", ", number);
  return fmt::format("waiting    {} in {} ({} of {}) for {}\n",
                     waiting["ranks"].size() == 1 ? "rank " + ranks + " waits" : "ranks " + ranks + " wait",
                     waiting["what"].get<std::string>(), waiting["policy"].get<std::string>(),
                     waiting["group"].get<std::string>(), reason);
}

/// What peers make the daemon hold, of what they may; not what any question for the status takes.
std::string heldLine(const Json& status) {
  constexpr uint64_t kBytesMin = 64 << 10;
  constexpr std::pair<const char*, const char*> kHeld[] = {
      {"in_flight_bytes", "in_flight_bytes"},   {"staged_bytes", "staged_bytes"},
      {"snapshot_bytes", "snapshot_bytes"},     {"log_pending_bytes", "log_pending_bytes"},
      {"outgoing_bytes", "all_outgoing_bytes"}, {"ring_bytes", "all_rings_bytes"}};
  std::string held;
  for (const auto& [used, limit] : kHeld) {
    const auto now = status[used].get<uint64_t>();
    if (now < kBytesMin) continue;
    held += fmt::format("{}{} {} of {}", held.empty() ? "" : ", ", limit, bytes(now),
                        bytes(status["limits"][limit]));
  }
  return held.empty() ? "" : "held       " + held + "\n";
}

std::string durabilityLine(const Json& durability) {
  if (durability["type"] == "none") return "";
  std::string out = fmt::format("durability {} in {}", durability["type"].get<std::string>(),
                                durability["path"].get<std::string>());
  if (durability.contains("checkpoints")) {
    const Json& last = durability["last_checkpoint"];
    out += last.is_null()
               ? ", no checkpoint yet"
               : fmt::format(", last checkpoint {} ago ({}, {:.2f} s, pushes paused for {:.1f} ms)",
                             duration(last["age_s"]), bytes(last["bytes"]), last["duration_s"].get<double>(),
                             last["pause_ms"].get<double>());
    if (auto failures = durability["checkpoint_failures"].get<uint64_t>(); failures > 0) {
      out += fmt::format(", {} failed", failures);
    }
    if (auto error = durability["error"].get<std::string>(); !error.empty()) {
      out += "\n           NOT SAVED: " + error;
    }
  }
  if (durability.contains("log")) {
    const Json& log = durability["log"];
    if (auto error = log["error"].get<std::string>(); !error.empty()) {
      out += fmt::format("\n           LOG BROKEN: {}, {} updates not written", error,
                         log["lost"].get<uint64_t>());
    }
  }
  return out + "\n";
}

/// The address to call: the only one, or the first that can be connected to.
Result<Address> reachable(const DaemonCall& call) {
  std::vector<Address> addresses;
  for (const std::string& server : call.servers) {
    PSD_ASSIGN_OR_RETURN(addresses.emplace_back(), parseAddress(server));
  }
  if (addresses.size() == 1) return addresses.front();
  std::vector<std::string> reasons;
  for (const Address& address : addresses) {
    const auto connected = connectTo(address, std::min(call.timeout, kReachTimeout));
    if (connected.ok()) return address;
    reasons.push_back(connected.message());
  }
  return Error{ErrorCode::unavailable, joined(reasons, "; ")};
}

}  // namespace

void printConfig(const LoadedConfig& loaded) { std::puts(jsonText(loaded.effective, 2).c_str()); }

std::string formatStatus(const Json& status) {
  const std::string addresses =
      joined(status["addresses"], ", ", [](const Json& address) { return address.get<std::string>(); });
  std::string out = fmt::format("psd {}  {}  pid {} on {}, up {}, {} resident\n",
                                status["version"].get<std::string>(), status["state"].get<std::string>(),
                                status["pid"].get<int>(), status["host"].get<std::string>(),
                                duration(status["uptime_s"]), bytes(status["resident_bytes"]));
  out += fmt::format("listening  {}\npolicy     {}\noptimizer  {}\n", addresses,
                     status["policy"].get<std::string>(), status["optimizer"].get<std::string>());
  if (status["model"].is_null()) {
    out += "model      none yet; the first trainer brings it\n";
  } else {
    const Json& model = status["model"];
    out += fmt::format("model      {}, {} parameters in {} tensors{}\n", model["name"].get<std::string>(),
                       model["parameters"].get<uint64_t>(), model["tensors"].get<uint64_t>(),
                       model["ready"].get<bool>() ? "" : ", waiting for its values");
    out += shardsTable(status);
  }
  const uint32_t least = status["world_size_min"], most = status["world_size"];
  out += fmt::format("trainers   {} of {}{} in, {} lost so far\n", status["trainers"].size(),
                     least == most ? "" : fmt::format("{} to ", least), most,
                     status["trainers_lost"].get<uint64_t>());
  if (!status["trainers"].empty()) out += trainersTable(status);
  for (const Json& waiting : status["waiting"]) out += waitingLine(waiting);
  out += durabilityLine(status["durability"]);
  out += heldLine(status);
  const Json& counters = status["counters"];
  out += fmt::format("traffic    {} pulled, {} pushed, {} gradients in {} updates, {} connections open\n",
                     bytes(counters["pull_bytes"]), bytes(counters["push_bytes"]),
                     counters["gradients"].get<uint64_t>(), counters["updates"].get<uint64_t>(),
                     counters["connections_open"].get<uint64_t>());
  const uint64_t late = counters["late_pushes"], stale = counters["stale_pushes"];
  if (late + stale > 0) out += fmt::format("gradients  {} dropped as late, {} as stale\n", late, stale);
  std::string refused;
  for (const auto& [name, value] : counters.items()) {
    bool trouble = name.find("refused") != std::string::npos || name.find("dropped") != std::string::npos;
    if (trouble && value.get<uint64_t>() > 0) refused += fmt::format(" {} {}", name, value.get<uint64_t>());
  }
  if (!refused.empty()) out += "refused   " + refused + "\n";
  return out;
}

Status printStatus(const DaemonCall& call, bool json) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_ASSIGN_OR_RETURN(const std::string text, fetchStatusJson(address, call.timeout));
  PSD_ASSIGN_OR_RETURN(const Json status, parseJson(text, "the status of " + address.toString()));
  std::fputs(json ? (jsonText(status, 2) + "\n").c_str() : formatStatus(status).c_str(), stdout);
  return {};
}

Status reloadServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_ASSIGN_OR_RETURN(const std::string change, reloadDaemon(address, call.timeout));
  std::printf("%s: %s\n", address.toString().c_str(), change.c_str());
  return {};
}

Status stopServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_RETURN_IF_ERROR(stopDaemon(address, "psd stop", call.timeout));
  std::printf("%s has stopped\n", address.toString().c_str());
  return {};
}

}  // namespace psd
