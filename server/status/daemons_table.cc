#include "server/status/daemons_table.h"

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/status/table_text.h"

namespace psd {
namespace {

/// For a primary, the state of its standby; for others, how far they follow.
std::string replicationText(const DaemonRow& row) {
  if (!row.answers || row.daemon.empty()) return "-";
  const std::string lag = bytesText(row.lagBytes);
  if (row.role == "primary") return row.standbyInSync ? "in sync, " + lag + " behind" : "no standby in sync";
  return fmt::format("{}, {} to apply", row.role == "standby" ? "in sync" : "not in sync", lag);
}

}  // namespace

std::string daemonsTable(const DaemonRows& rows) {
  std::vector<TextRow> cells = {{"daemon", "partition", "role", "term", "state", "standby"}};
  std::string lines;
  for (const DaemonRow& row : rows.daemons) {
    cells.push_back({row.address, fmt::to_string(row.partition), row.role.empty() ? "-" : row.role,
                     fmt::to_string(row.term),
                     row.answers  ? row.state
                     : row.polled ? "unreachable"
                                  : "?",
                     replicationText(row)});
    if (!row.polled && !row.answers) {
      lines += labelledLine("", row.address + ": " + row.why);
    } else if (!row.answers) {
      const bool named = row.why.find(row.address) != std::string::npos;
      lines += labelledLine("", "UNREACHABLE: " + (named ? row.why : row.address + ": " + row.why));
    } else if (!row.waits.empty()) {
      lines += labelledLine("", fmt::format("WAITS: {}: {}", row.address, row.waits));
    }
  }
  return alignedRows(cells) + lines;
}

std::string replicaLines(const ReplicaSetStatus& group) {
  std::string text = fmt::format("{} of term {}", group.role, group.term);
  if (group.role == "primary") {
    if (group.follower.empty()) {
      text += ", no standby";
    } else {
      text += fmt::format(", {} {}, {} behind", group.inSync() ? "standby" : "not in sync yet: follower",
                          group.follower, bytesText(group.lagBytes));
      if (group.wait == "standby_and_disk") text += ", pushes wait for both disks";
    }
  } else if (!group.primary.empty()) {
    text += fmt::format(", primary {}, last contact {} ago, {} to apply", group.primary,
                        durationText(group.lastContactSeconds), bytesText(group.lagBytes));
  }
  if (group.takeoverSeconds > 0)
    text += fmt::format(", took over in {}", durationText(group.takeoverSeconds));
  std::string out = labelledLine("group", text);
  if (group.role != "primary" && group.folderTerm > 0)
    out += labelledLine("", fmt::format("its folder held the state of term {} at startup", group.folderTerm));
  if (!group.waits.empty()) out += labelledLine("", "WAITS: " + group.waits);
  if (!group.engine.empty()) out += labelledLine("", "ENGINE: " + group.engine);
  if (!group.lowerLimits.empty()) {
    out += labelledLine("", "LOWER LIMITS: " + joined(group.lowerLimits, ", "));
  }
  return out;
}

}  // namespace psd
