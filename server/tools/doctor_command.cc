#include "server/tools/doctor_command.h"

#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/config/json_file.h"
#include "common/log/log.h"
#include "common/os/host.h"
#include "common/text/number.h"
#include "common/text/text.h"
#include "server/status/table_text.h"
#include "server/tools/host_checks.h"

namespace psd {
namespace {

using Outcome = Finding::Outcome;

const char* outcomeName(Outcome outcome) {
  constexpr const char* kNames[] = {"ok", "warn", "fail", "skip"};
  return kNames[static_cast<size_t>(outcome)];
}

Status print(const std::vector<Finding>& findings, bool json) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  size_t failed = 0;
  for (const Finding& finding : findings) {
    failed += finding.outcome == Outcome::fail ? 1 : 0;
    if (json) {
      checks.push_back(
          {{"check", finding.check}, {"outcome", outcomeName(finding.outcome)}, {"text", finding.text}});
    } else {
      const std::string line =
          fmt::format("{:<4}  {}: {}", outcomeName(finding.outcome), finding.check, finding.text);
      std::puts(oneLine(line, kMessageBytesMax).c_str());
    }
  }
  if (json) std::puts(jsonText({{"checks", checks}}, 2).c_str());
  if (failed == 0) return {};
  return {ErrorCode::notReady, fmt::format("{} of {} failed", failed, countText(findings.size(), "check"))};
}

/// The soft limit and the number of open descriptors of a process of this machine.
Finding checkProcess(uint32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/limits", pid));
  std::string line, limit;
  while (limit.empty() && std::getline(file, line)) {
    constexpr std::string_view kName = "Max open files";
    if (line.starts_with(kName)) std::istringstream(line.substr(kName.size())) >> limit;
  }
  const std::optional<uint64_t> open = openDescriptorsOf(pid);
  if (!open || limit.empty()) return {"descriptors", Outcome::skip, "the process is another user's"};
  const std::string text = fmt::format("{} of {} open", *open, limit);
  const auto most = toNumber<uint64_t>(limit);  // nothing of "unlimited"
  if (!most || *open * 10 < *most * 9) return {"descriptors", Outcome::ok, text};
  return {"descriptors", Outcome::warn, text + "; raise LimitNOFILE, or ulimit -n, and restart the daemon"};
}

Finding checkState(const DaemonStatus& status) {
  const std::string& state = status.state;
  if (state == "serving" || state == "standby") return {"state", Outcome::ok, state};
  return {"state", Outcome::warn, state + "; `psd status` shows what it waits for"};
}

Finding checkSaving(const DurabilityStatus& durability) {
  if (durability.type == "none")
    return {"durability", Outcome::warn, "none: the model is lost if the daemon dies; see `durability`"};
  if (!durability.error.empty())
    return {"durability", Outcome::fail, durability.error + "; repair it, then psd checkpoint"};
  return {"durability", Outcome::ok,
          fmt::format("{}, {}", durability.type, countText(durability.checkpoints, "checkpoint"))};
}

std::vector<Finding> findingsOf(const DaemonStatus& status) {
  std::vector<Finding> all = {checkState(status), checkSaving(status.durability)};
  for (const DiskStatus& disk : status.disks) {
    const DiskKey key = disk.path == status.durability.path ? DiskKey::durability : DiskKey::save;
    all.push_back(checkRoom("disk of " + disk.path, {disk.freeBytes, disk.sizeBytes}, key));
  }
  if (status.replicaSet) {
    const ReplicaSetStatus& group = *status.replicaSet;
    all.push_back(group.engine.empty() ? Finding{"etcd", Outcome::ok, "answers"}
                                       : Finding{"etcd", Outcome::fail, group.engine + "; see engine.etcd"});
    if (!group.waits.empty()) all.push_back({"replica set", Outcome::fail, group.waits});
    if (group.role == "primary" && !group.inSync())
      all.push_back({"standby", Outcome::warn,
                     "no standby is in sync; start one, or see why with `psd status` at the standby"});
  }
  if (status.logLinesDropped > 0) {
    all.push_back({"log", Outcome::warn,
                   countText(status.logLinesDropped, "line") + " dropped; its file or terminal is too slow"});
  }
  if (status.host == hostName()) all.push_back(checkProcess(status.pid));
  return all;
}

}  // namespace

Status examineHost(Env& env, const LoadedConfig& loaded, bool json) {
  return print(checkHost(env, loaded.config), json);
}

Status examineDaemon(const DaemonCall& call, bool json) {
  PSD_ASSIGN_OR_RETURN(const std::vector<DaemonCall> daemons, allDaemons(call));
  std::vector<Finding> all;
  for (const DaemonCall& daemon : daemons) {
    const std::string name = joined(daemon.servers, ",");
    const Result<DaemonStatus> status = readStatusOf(daemon);
    if (!status.ok()) {
      if (daemons.size() == 1) return status.status();
      all.push_back({name, Outcome::fail, status.message() + "; start that daemon"});
      continue;
    }
    for (Finding& finding : findingsOf(*status)) {
      if (daemons.size() > 1) finding.check = name + " " + finding.check;
      all.push_back(std::move(finding));
    }
  }
  return print(all, json);
}

}  // namespace psd
