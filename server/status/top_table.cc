#include "server/status/top_table.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/status/daemons_table.h"
#include "server/status/reported_values.h"
#include "server/status/table_text.h"

namespace psd {
namespace {

std::string byteRateText(double perSecond) { return bytesText(static_cast<uint64_t>(perSecond)) + "/s"; }

double rateOf(uint64_t before, uint64_t now, double seconds) {
  return seconds > 0 ? static_cast<double>(now - std::min(before, now)) / seconds : 0;
}

const TrainerStatus* sameTrainer(const DaemonStatus& status, const TrainerStatus& trainer) {
  for (const TrainerStatus& each : status.trainers) {
    if (each.rank == trainer.rank && each.process == trainer.process) return &each;
  }
  return nullptr;
}

/// One row per trainer; adds up their samples per second.
std::string topTrainers(const DaemonStatus& before, const DaemonStatus& now, double seconds,
                        double& samples) {
  const bool tokens = reportedSum(now.trainers, kReportedTokens).has_value();
  std::vector<TextRow> rows = {{"rank", "process", "step", "steps/s", "samples/s", "loss", "staleness",
                                "pulled", "pushed", "last seen", "waits for"}};
  if (tokens) rows.front().push_back("tokens/s");
  std::vector<const TrainerStatus*> sorted;
  for (const TrainerStatus& each : now.trainers) sorted.push_back(&each);
  std::sort(sorted.begin(), sorted.end(), [](auto* one, auto* other) { return one->rank < other->rank; });
  for (const TrainerStatus* each : sorted) {
    const TrainerStatus* const old = sameTrainer(before, *each);
    const double steps = old ? rateOf(old->step, each->step, seconds) : 0;
    samples += steps * static_cast<double>(each->batch);
    rows.push_back({fmt::to_string(each->rank), fmt::format("{}@{}", each->pid, each->host),
                    fmt::to_string(each->step), rateText(steps),
                    rateText(steps * static_cast<double>(each->batch)), reportedText(*each, kReportedLoss),
                    fmt::to_string(each->staleness),
                    byteRateText(old ? rateOf(old->pulledBytes, each->pulledBytes, seconds) : 0),
                    byteRateText(old ? rateOf(old->pushedBytes, each->pushedBytes, seconds) : 0),
                    durationText(each->lastSeenSeconds) + " ago",
                    !each->connected         ? "its connection"
                    : each->waitsFor.empty() ? "-"
                                             : each->waitsFor});
    if (tokens) rows.back().push_back(reportedRateText(*each, kReportedTokens));
  }
  return now.trainers.empty() ? "  no trainers\n" : alignedRows(rows);
}

std::string topWaiting(const DaemonStatus& now) {
  std::string out;
  const bool several = now.hasSeveralGroups();
  for (const WaitingStatus& waiting : now.waiting) {
    const std::string who = ranksText(waiting.ranks);
    const std::string whom = joined(waiting.awaited, ", ", [](const AwaitedStatus& one) {
      return fmt::format("{} ({})", one.rank, durationText(one.waitedSeconds));
    });
    out += labelledLine(
        "waiting", fmt::format("{}{}: ranks {} for {}", waiting.what, several ? " of " + waiting.group : "",
                               who, whom.empty() ? "others to join" : whom));
  }
  return out;
}

}  // namespace

std::string topTable(const DaemonStatus& before, const DaemonStatus& now) {
  const bool same =
      before.pid == now.pid && before.host == now.host && before.uptimeSeconds < now.uptimeSeconds;
  const DaemonStatus none;
  const DaemonStatus& old = same ? before : none;
  const double seconds = now.uptimeSeconds - old.uptimeSeconds;
  const auto& metrics = daemonMetrics();
  const auto rate = [&](const Metric<Counter>& counter) {
    return rateOf(old.counters[counter], now.counters[counter], seconds);
  };
  double samples = 0;
  const std::string trainers = topTrainers(old, now, seconds, samples);
  std::string out = labelledLine(
      "psd " + oneLine(now.version, 20),
      fmt::format("{}, {}, up {}, {} resident", now.state, now.model ? now.model->name : "no model yet",
                  durationText(now.uptimeSeconds), bytesText(now.residentBytes)));
  const std::optional<double> tokens = reportedSum(now.trainers, kReportedTokens);
  out += labelledLine(
      "rates",
      fmt::format("{} gradients/s, {} samples/s, {}{} pulled, {} pushed", rateText(rate(metrics.gradients)),
                  rateText(samples), tokens ? rateText(*tokens) + " tokens/s, " : "",
                  byteRateText(rate(metrics.pullBytes)), byteRateText(rate(metrics.pushBytes))));
  if (now.replicaSet) out += replicaLines(*now.replicaSet);
  out += labelledLine("trainers", fmt::format("{} of {} joined, {} lost", now.trainers.size(), now.worldSize,
                                              now.trainersLost));
  return out + trainers + topWaiting(now);
}

}  // namespace psd
